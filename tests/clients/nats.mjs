// nats.js as a publisher and a listener. The arguments are the server, the account, its key, and the account that it must not reach.
import assert from "node:assert/strict";
import { jetstream } from "@nats-io/jetstream";
import { connect, delay, PermissionViolationError } from "@nats-io/transport-node";

const [servers, account, key, other] = process.argv.slice(2);
const nc = await connect({ servers, user: account, pass: key, inboxPrefix: `_I.${account}.${key.split("_")[2]}` });
const refused = [];
(async () => {
  for await (const status of nc.status()) {
    if (status.type === "error") refused.push(status.error);
  }
})();
const heard = nc.subscribe(`signalbox.event.${account}.>`);
await nc.flush();
const sent = { id: "by-nats-js", agent: "coder", body: "Say what is left to do." };
const ack = await jetstream(nc).publish(`signalbox.notification.${account}.JS-1`, JSON.stringify(sent));
assert.equal(ack.stream, "SIGNALBOX_NOTIFICATION");
const late = setTimeout(() => assert.fail("no event of the notification"), 30_000);
for await (const event of heard) {
  if (event.subject === `signalbox.event.${account}.JS-1.turn.finished`) break;
}
clearTimeout(late);

const wrong = [`signalbox.event.${other}.>`, ">"];
for (const subject of wrong) {
  // What the server refuses ends the subscription.
  await assert.rejects(async () => {
    for await (const _ of nc.subscribe(subject)) assert.fail(`${subject} was heard`);
  }, PermissionViolationError);
}
nc.publish(`signalbox.notification.${other}.T-1`, "{}");
const named = () => refused.filter((error) => error instanceof PermissionViolationError).map((error) => `${error.operation} ${error.subject}`);
const expected = [`publish signalbox.notification.${other}.T-1`, ...wrong.map((subject) => `subscription ${subject}`)].sort();
for (let tries = 0; named().length < expected.length && tries < 300; tries++) await delay(100);
assert.deepEqual(named().sort(), expected);
await nc.close();
