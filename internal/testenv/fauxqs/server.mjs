// An emulator of Amazon SQS, in memory, on the port of the first argument.
import { startFauxqs } from "fauxqs";

await startFauxqs({ port: Number(process.argv[2]), logger: false });
console.log("ready");
