"""The leak audit: can a reader of a dataset tell the labels without judging the contents?"""
