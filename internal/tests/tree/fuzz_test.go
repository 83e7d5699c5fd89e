package tree_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// decodes matches a call that makes values of bytes.
var decodes = regexp.MustCompile(`\b(json|proto|bson|yaml)\.(Unmarshal|NewDecoder)|\.DecodeString\(|binary\.(Uvarint|Varint|Read\(|(Big|Little)Endian\.Uint)|gzip\.NewReader|\.ParseForm\(`)

// decoders are the files that decode, each with the fuzz target that feeds it, or with the reason why its bytes are no
// stranger's. A transport whose decoder calls none of the above has its target all the same.
var decoders = map[string]string{
	"codec/proto/codec.go":                    "FuzzDecode",
	"consumer/foreign/foreign.go":             "FuzzReaders",
	"consumer/limitstate.go":                  "FuzzLimitState",
	"consumer/structured.go":                  "FuzzUnwrap",
	"contrib/kafka/position.go":               "FuzzRestore",
	"dashboard/actions.go":                    "FuzzSeal",
	"dashboard/session.go":                    "FuzzCookie",
	"hlc/timestamp.go":                        "FuzzBinary",
	"store/mongo/record.go":                   "FuzzDecode",
	"store/postgres/attrs.go":                 "FuzzDecodeAttrs",
	"store/sqlite/attrs.go":                   "FuzzDecodeAttrs",
	"transform/claimcheck.go":                 "FuzzUndo",
	"transform/gzip.go":                       "FuzzUndo",
	"transport/rabbitmq/headerframes.go":      "FuzzHeaderFrames",
	"transport/redisstreams/routes.go":        "FuzzBinding",
	"transport/sqs/wire.go":                   "FuzzDecode",
	"cli/configcmd.go":                        "own: a file of the program",
	"cli/transform.go":                        "own: keys of the operator",
	"contrib/mysql/audit.go":                  "own: lines of the operators' roles",
	"contrib/mysql/heartbeat.go":              "own: members, which relays write",
	"dashboard/guard.go":                      "own: net/http reads the form",
	"internal/content/content.go":             "own: one call",
	"store/postgres/inboxbatch.go":            "own: the answer of a statement",
	"store/postgres/internal/schema/check.go": "own: the answer of a statement",
	"store/postgres/read.go":                  "own: the answer of a statement",
	"store/sqlite/audit.go":                   "own: lines of the operators",
	"store/sqlite/heartbeat.go":               "own: members, which relays write",
	"topic.go":                                "own: encoding/json into a type of the program",
	"transport/rabbitmq/topology/broker.go":   "own: answers of the broker's administration",
	"transport/rabbitmq/topology/compare.go":  "own: policies of the broker's administrator",
	"transport/rabbitmq/topology/limits.go":   "own: policies of the broker's administrator",
	"transport/sqs/declare.go":                "own: attributes of the queue's owner",
	"transport/sqs/topic.go":                  "own: attributes of the topic's owner",
	"contrib/kafka/wire.go":                   "FuzzDecode",
	"contrib/mysql/row.go":                    "FuzzDecode",
	"contrib/nats/wire.go":                    "FuzzDecode",
	"transport/rabbitmq/decode.go":            "FuzzDecode",
	"transport/redisstreams/decode.go":        "FuzzDecode",
	"core/wire.go":                            "FuzzSetAttribute",
	"cli/config/load.go":                      "FuzzLoad",
	"dashboard/text.go":                       "FuzzBody",
	"recurring/job.go":                        "FuzzParse",
}

// Each file that decodes bytes has a fuzz target in its package, or a reason why it needs none.
// SE-08
func TestDecodersAreFuzzed(t *testing.T) {
	t.Parallel()
	targets := map[string]bool{} // by folder and name
	files := map[string]bool{}
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name {
			case "bench", "examples", "waybilltest", "internal/tests", "internal/testenv", "internal/mutants", "internal/nightly", "internal/checker", "internal/demo":
				return fs.SkipDir
			}
			if strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "testdata" || d.Name() == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path.Join(root(t), name))
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				targets[path.Dir(name)+"/"+m[1]] = true
			}
			return err
		}
		if files[name] = true; decodes.Match(text) && decoders[name] == "" {
			t.Errorf("%s decodes bytes: write a fuzz target if a stranger can send them, and name it here", name)
		}
		return err
	})
	if err != nil || len(targets) < 20 {
		t.Errorf("%d fuzz targets, %v", len(targets), err)
	}
	for name, target := range decoders {
		if !files[name] {
			t.Errorf("there is no %s", name)
		}
		if reason, own := strings.CutPrefix(target, "own: "); own && reason == "" || !own && !targets[path.Dir(name)+"/"+target] {
			t.Errorf("%s: there is no target %s", name, target)
		}
	}
}
