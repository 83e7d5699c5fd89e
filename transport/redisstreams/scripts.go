package redisstreams

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

// The scripts run on the server, each as one step: nothing else runs meanwhile. All keys of one are in one slot.
var (
	//go:embed lua/lib.lua
	luaLib string
	//go:embed lua/publish.lua
	luaPublish string
	//go:embed lua/subscribe.lua
	luaSubscribe string
	//go:embed lua/take.lua
	luaTake string
	//go:embed lua/settle.lua
	luaSettle string
	//go:embed lua/renew.lua
	luaRenew string
	//go:embed lua/recover.lua
	luaRecover string
	//go:embed lua/leave.lua
	luaLeave string
	//go:embed lua/replay.lua
	luaReplay string

	publishScript   = redis.NewScript(luaPublish)
	subscribeScript = consuming(luaSubscribe)
	takeScript      = consuming(luaTake)
	settleScript    = consuming(luaSettle)
	renewScript     = consuming(luaRenew)
	recoverScript   = consuming(luaRecover)
	leaveScript     = consuming(luaLeave)
	replayScript    = script(luaReplay)
	emptyScript     = redis.NewScript("return 0") // a passive consumer may write to no key of the whole bus
)

func script(source string) *redis.Script { return redis.NewScript(luaLib + source) }

// consuming is a script that a server at its maxmemory runs, too: consumers free more than they take, and without them
// a full server would stay full.
func consuming(source string) *redis.Script {
	return redis.NewScript("#!lua flags=allow-oom\n" + luaLib + source)
}

// keys are the names of a bus's keys. The braces put all of them into one slot of a cluster.
type keys struct{ stem string }

func keysOf(bus string) keys { return keys{"{" + bus + "}:"} }

func (k keys) bindings() string            { return k.stem + "bindings" }
func (k keys) version() string             { return k.stem + "version" }
func (k keys) queue(name string) string    { return k.stem + "queue:" + name }
func (k keys) parked(name string) string   { return k.stem + "parked:" + name }
func (k keys) delayed(name string) string  { return k.stem + "delayed:" + name }
func (k keys) due(name string) string      { return k.stem + "due:" + name }
func (k keys) wakeUps(name string) string  { return k.stem + "wake:" + name }
func (k keys) activeOf(name string) string { return k.stem + "active:" + name }
