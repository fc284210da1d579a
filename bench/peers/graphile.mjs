// graphile-worker: jobs are rows of the same Postgres; a named queue per session keeps the order.
import { Logger, run } from "graphile-worker";

import { turn } from "./turn.mjs";

const tuned = {
  concurrentJobs: 128,
  maxPoolSize: 20,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

await run({
  preset: {
    worker: {
      connectionString: process.env.DATABASE_URL,
      // A line for each job otherwise.
      logger: new Logger(() => (level, message) => level === "error" && console.error(message)),
      ...(process.env.TUNED ? tuned : { concurrentJobs: 32 }),
    },
  },
  noHandleSignals: true,
  taskList: { turn: (payload) => turn(payload) },
});
