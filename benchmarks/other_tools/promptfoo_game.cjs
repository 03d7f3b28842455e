// The game of games.py as a provider of promptfoo, which calls promptfoo's own provider of OpenAI for each turn:
// node promptfoo_game.cjs SITUATION. Prints the CPU seconds from the first call to the last byte on disk.
const fs = require("node:fs");
const promptfoo = require("promptfoo");

function nextMessages(starts, texts) {
  const turn = texts.length;
  const previous = texts.map((content, index) => ({ role: (turn - index) % 2 === 0 ? "assistant" : "user", content }));
  return [...starts[turn].slice(0, 1), ...previous, ...starts[turn].slice(1)];
}

async function main() {
  const { base_url, concurrency, games } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
  const config = { apiBaseUrl: base_url, apiKey: "none" };
  const model = await promptfoo.loadApiProvider("openai:chat:tiny", { options: { config } });
  const player = {
    id: () => "game",
    async callApi(prompt, context) {
      const starts = games[context.vars.game];
      const texts = [];
      while (texts.length < starts.length) {
        const answer = await model.callApi(JSON.stringify(nextMessages(starts, texts)));
        if (answer.error) throw new Error(answer.error);
        texts.push(answer.output);
      }
      return { output: texts.at(-1) };
    },
  };
  const tests = games.map((_, game) => ({ vars: { game } }));
  const before = process.cpuUsage();
  await promptfoo.evaluate(
    { prompts: ["{{game}}"], providers: [player], tests, writeLatestResults: true },
    { maxConcurrency: concurrency, cache: false, showProgressBar: false },
  );
  const { user, system } = process.cpuUsage(before);
  console.log(JSON.stringify({ cpu: (user + system) / 1e6 }));
}

main().then(() => process.exit(0));
