// Package cli is the waybill command over a list of adapters: the relay as a daemon, and the commands of operators. The
// shipped command has the adapters of this module. A program with others is a main of ten lines:
//
//	func main() {
//		cli.App{
//			Stores:     append(adapters.Stores(), cli.NewStoreKind("mysql", openMySQL)),
//			Transports: adapters.Transports(),
//		}.Main()
//	}
//
// # Guarantees
//
//   - A configuration is read whole, and every problem of it is told at once with its file and line, before anything is
//     opened.
//   - What destroys asks first, and takes --yes for an answer. With --dry-run it changes nothing.
//   - Nothing that a message holds can move the cursor of a terminal: control characters are shown as escapes.
//   - The exit code tells what happened; see [ExitOK] and the others.
//   - No output holds a password. Bodies are shown by show and dlq show only.
//
// # Concurrency
//
// An App is a value. Run can be called several times at once.
//
// # Ownership
//
// Run closes what it opens. It uses the slices of the App without changing them.
//
// # Limits
//
// Each command that asks a store or a broker ends after --timeout, by default 30 s, but for those that work through
// many records and those that run until they are told to stop.
package cli
