// Restate: a virtual object per session keeps the order; its journal holds the outcome of the turn.
import * as restate from "@restatedev/restate-sdk";

import { turn } from "./turn.mjs";

// The SDK uses it, and Node before 22 does not have it.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new this((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
};

const session = restate.object({
  name: "session",
  handlers: { turn: async (ctx, payload) => ctx.run("turn", () => turn(payload)) },
});

restate.endpoint().bind(session).listen(Number(process.env.PORT));
