// The TypeScript SDK as a client of `lactl mcp`; by_hand.sh runs it. Arguments: 1 or 2 (the SDK), the socket.
const [which, socket] = process.argv.slice(2);
const two = which === "2";
const { Client } = await import(two ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk/client/index.js");
const stdio = two ? "@modelcontextprotocol/client/stdio" : "@modelcontextprotocol/sdk/client/stdio.js";
const { StdioClientTransport } = await import(stdio);
const asked = [];
const said = [];
const elicit = async (request) => {
  asked.push(request.params.message);
  return { action: "accept", content: { allow: true } };
};
const options = { capabilities: { elicitation: {} }, ...(two ? { versionNegotiation: { mode: "auto" } } : {}) };
const client = new Client({ name: "by-hand", version: "1" }, options);
if (two) {
  client.setRequestHandler("elicitation/create", elicit);
} else {
  const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
  client.setRequestHandler(ElicitRequestSchema, elicit);
}
const call = (params, more = {}) => (two ? client.callTool(params, more) : client.callTool(params, undefined, more));
const check = (what, holds) => {
  console.log(holds ? "ok  " : "FAIL", what);
  if (!holds) process.exitCode = 1;
};

const args = ["mcp", "--socket", socket];
await client.connect(new StdioClientTransport({ command: "lactl", args, env: process.env }));
check("the server says who it is", client.getServerVersion()?.name === "lightagentd");
if (two) check("2026-07-28 is spoken", client.getNegotiatedProtocolVersion() === "2026-07-28");
check("there are tools", (await client.listTools()).tools.length > 50);
const answer = await call(
  { name: "ask_agent", arguments: { prompt: "check memory" } },
  { onprogress: (progress) => said.push(progress.message) },
);
check("the agent answers", answer.structuredContent.answer.length > 0);
check("it tells its progress", said.includes("skill.run begins."));
const file = `${socket}.by-hand-${which}`;
const written = await call({ name: "file_write", arguments: { path: file, content: "x" } });
check("a change is asked about, and runs", asked.length === 1 && asked[0].includes(file) && !written.isError);
check("there are prompts", (await client.listPrompts()).prompts.length > 10);
check("there are resources", (await client.listResources()).resources.length > 1);
const abort = new AbortController();
setTimeout(() => abort.abort("enough"), 500);
const sleep = { name: "bash_exec", arguments: { command: "sleep 30" } };
check("a call is cancelled", await call(sleep, { signal: abort.signal }).then(() => false, () => true));
await client.close();
