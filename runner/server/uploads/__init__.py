"""From what somebody sends to what others see."""
