// One turn, the same for each peer: a call to the provider, and one row for its outcome.
import { Agent, request } from "node:http";

import pg from "pg";

const { PROVIDER_URL, DATABASE_URL } = process.env;
const agent = new Agent({ keepAlive: true, maxSockets: 512 });
export const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 10 });

const post = (body) =>
  new Promise((resolve, reject) => {
    const call = request(
      PROVIDER_URL,
      { method: "POST", agent, headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body) } },
      (answer) => {
        let text = "";
        answer.setEncoding("utf8");
        answer.on("data", (piece) => (text += piece));
        answer.on("error", reject);
        answer.on("end", () =>
          answer.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(`provider: HTTP ${answer.statusCode}`)),
        );
      },
    );
    call.on("error", reject);
    call.end(body);
  });

// `place` is the notification's number, `session` that of its pair.
export async function turn({ place, session, body }) {
  const answer = await post(JSON.stringify({ model: "bench", input: body }));
  const reply = answer.output.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
  await pool.query(
    "insert into turn (place, session_id, reply) values ($1, $2, $3) on conflict do nothing",
    [place, session, reply],
  );
}

process.on("SIGTERM", () => process.exit(0));
