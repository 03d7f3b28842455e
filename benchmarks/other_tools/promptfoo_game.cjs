// The game of games.py as a provider of promptfoo, which calls promptfoo's own provider of OpenAI for each turn:
// node promptfoo_game.cjs SITUATION. Prints the CPU seconds from the first call to the last byte on disk.
const fs = require("node:fs");
const promptfoo = require("promptfoo");

function chat(starts, said) {
  const turn = said.length;
  const texts = said.map((content, index) => ({ role: (turn - index) % 2 === 0 ? "assistant" : "user", content }));
  return [...starts[turn].slice(0, 1), ...texts, ...starts[turn].slice(1)];
}

async function main() {
  const { base_url, concurrency, games } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
  const config = { apiBaseUrl: base_url, apiKey: "none" };
  const model = await promptfoo.loadApiProvider("openai:chat:tiny", { options: { config } });
  const player = {
    id: () => "game",
    async callApi(prompt, context) {
      const starts = games[context.vars.game];
      const said = [];
      while (said.length < starts.length) {
        const answer = await model.callApi(JSON.stringify(chat(starts, said)));
        if (answer.error) throw new Error(answer.error);
        said.push(answer.output);
      }
      return { output: said.at(-1) };
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
