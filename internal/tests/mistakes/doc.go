// Package mistakes holds tests only. They give Waybill, with the real adapters, faulty surroundings: wrong addresses,
// missing rights, tables and queues of another shape, unreadable messages, servers that stop answering. Each must end
// in one clear error that names the object, the cause and the cure, without a password or a payload, with nothing lost
// and nothing stuck.
//
// Run the tests with -v to read the texts.
package mistakes
