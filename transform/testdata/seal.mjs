// seal.mjs is the format of docs/transform.md in another language: it wrote sealed.b64. Run it with Node.js.
import { createCipheriv, hkdfSync } from "node:crypto";

const [keyID, secret] = ["2026-11", "0123456789abcdef0123456789abcdef"];
const bound = [keyID, "gzip", "pay-1", "/payments", "payments.made", "payments.made", "", "acme"];
const salt = Buffer.from("salt of 16 bytes"), nonce = Buffer.from("nonce, of 12");

const data = [Buffer.from([1])];
for (const field of bound) {
  const size = Buffer.alloc(4);
  size.writeUInt32BE(Buffer.byteLength(field));
  data.push(size, Buffer.from(field));
}
const key = Buffer.from(hkdfSync("sha256", secret, salt, "waybill-aes256gcm v1 key", 32));
const cipher = createCipheriv("aes-256-gcm", key, nonce).setAAD(Buffer.concat(data));
const text = Buffer.concat([cipher.update("I am the walrus"), cipher.final()]);
const head = Buffer.concat([Buffer.from([1, keyID.length]), Buffer.from(keyID), salt, nonce]);
console.log(Buffer.concat([head, text, cipher.getAuthTag()]).toString("base64"));
