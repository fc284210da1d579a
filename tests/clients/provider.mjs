// oidc-provider as people's provider of OpenID Connect, with its own forms of login and consent. The arguments are its port, the settings
// of its one client, whether its ID tokens have the e-mail address as well, and what it knows of people, by login.
import Provider from "oidc-provider";

const [port, client, inToken, people] = process.argv.slice(2).map((argument) => JSON.parse(argument));
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [client],
  claims: { openid: ["sub"], email: ["email", "email_verified"] },
  // The standard has claims of a scope elsewhere (OpenID Connect Core, 5.4), and this is the program's own default.
  conformIdTokenClaims: !inToken,
  cookies: { keys: ["of this check alone"] },
  findAccount: (_, login) => people[login] && { accountId: login, claims: () => ({ sub: login, ...people[login] }) },
});
provider.listen(port, "127.0.0.1", () => console.log("listening"));
