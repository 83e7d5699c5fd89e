package mongoproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// txKey names a transaction: the id of its session and its number.
type txKey struct {
	session string
	number  int64
}

// tx is a transaction. It has a connection as long as it is open.
type tx struct {
	mu     sync.Mutex
	proxy  *Proxy
	conn   *pgx.Conn
	client net.Conn // that began it
	until  time.Time
	pages  map[int64]bson.Raw // where cursors go on
	end    string             // how it ended
}

// command is a command of a transaction.
type command struct {
	key   txKey
	name  string
	db    string
	start bool
	body  bson.Raw // without what belongs to the transaction
}

// begin has PostgreSQL say what a command waits for, after a millisecond. A lock_timeout would also end the short wait
// until another transaction has made a table larger.
const begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL deadlock_timeout = '1ms'; SET LOCAL log_lock_waits = on; SET LOCAL client_min_messages = log"

// waitsForAnother reports whether a notice says that a command waits for the end of another transaction. MongoDB does
// not wait then: the command fails.
func waitsForAnother(notice string) bool {
	_, lock, waits := strings.Cut(notice, " still waiting for ")
	_, of, _ := strings.Cut(lock, " on ")
	return waits && (strings.HasPrefix(of, "transaction ") || strings.HasPrefix(of, "tuple ") || strings.HasPrefix(of, "speculative token "))
}

// ours returns the command of m, if it belongs to a transaction.
func (p *Proxy) ours(m message) (command, bool) {
	if m.opcode() != opMsg {
		return command{}, false
	}
	all, err := m.body()
	if err != nil {
		return command{}, false
	}
	auto, ok := all.Lookup("autocommit").BooleanOK()
	number, ok2 := all.Lookup("txnNumber").AsInt64OK()
	if !ok || !ok2 || auto {
		return command{}, false
	}
	_, session, _ := all.Lookup("lsid", "id").BinaryOK()
	start, _ := all.Lookup("startTransaction").BooleanOK()
	first, err := all.IndexErr(0)
	if err != nil {
		return command{}, false
	}
	body, err := without(all, func(name string) bool {
		switch name {
		case "lsid", "txnNumber", "autocommit", "startTransaction", "readConcern", "writeConcern", "maxTimeMS":
			return true
		}
		return strings.HasPrefix(name, "$")
	})
	db, _ := all.Lookup("$db").StringValueOK()
	return command{txKey{string(session), number}, first.Key(), db, start, body}, err == nil
}

// execute executes a command and returns the answer.
func (p *Proxy) execute(ctx context.Context, client net.Conn, cmd command) bson.Raw {
	t := p.find(cmd, client)
	if t == nil {
		return failure(251, "NoSuchTransaction", "there is no such transaction, or it has ended", transient)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if cmd.start {
		if err := t.open(ctx); err != nil {
			_ = t.finish(ctx, "ROLLBACK")
			return failure(6, "HostUnreachable", err.Error(), transient)
		}
	}
	switch {
	case cmd.name == "commitTransaction" && t.end == "COMMIT":
		return document(okField) // again, after a lost answer
	case t.conn == nil:
		return failure(251, "NoSuchTransaction", "the transaction has ended", transient)
	case cmd.name == "commitTransaction":
		if err := t.finish(ctx, "COMMIT"); err != nil {
			return t.failed(ctx, err)
		}
		return document(okField)
	case cmd.name == "abortTransaction":
		_ = t.finish(ctx, "ROLLBACK")
		return document(okField)
	}
	answer, err := t.run(ctx, cmd)
	if err != nil {
		return t.failed(ctx, err)
	}
	return t.checked(ctx, answer)
}

// find returns the transaction of cmd, which it makes if cmd starts one.
func (p *Proxy) find(cmd command, client net.Conn) *tx {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.txs[cmd.key]
	if cmd.start && t == nil {
		t = &tx{proxy: p, client: client, until: time.Now().Add(p.opts.Lifetime), pages: map[int64]bson.Raw{}}
		p.txs[cmd.key] = t
	}
	return t
}

func (t *tx) open(ctx context.Context) error {
	var err error
	if t.conn, err = t.proxy.connect(ctx); err != nil {
		return err
	}
	_, err = t.conn.PgConn().Exec(ctx, begin).ReadAll()
	return err
}

// finish ends the transaction and gives its connection back. A second call does nothing.
func (t *tx) finish(ctx context.Context, how string) error {
	if t.conn == nil {
		return nil
	}
	tag, err := t.conn.Exec(ctx, how)
	if err == nil && tag.String() != how {
		err = errors.New("the transaction could only be rolled back")
	}
	if err != nil {
		_ = t.conn.Close(context.WithoutCancel(ctx))
	} else {
		t.end = how
	}
	t.proxy.release(t.conn)
	t.conn = nil
	return err
}

// calls are the functions that execute commands, and whether they answer with a page of a cursor.
var calls = map[string]struct {
	text string
	page bool
}{
	"insert":        {"SELECT p_result::bytea FROM documentdb_api.insert($1, $2::bytea)", false},
	"update":        {"SELECT p_result::bytea FROM documentdb_api.update($1, $2::bytea)", false},
	"delete":        {"SELECT p_result::bytea FROM documentdb_api.delete($1, $2::bytea)", false},
	"findAndModify": {"SELECT p_result::bytea FROM documentdb_api.find_and_modify($1, $2::bytea)", false},
	"distinct":      {"SELECT document::bytea FROM documentdb_api.distinct_query($1, $2::bytea)", false},
	"find":          {"SELECT cursorpage::bytea, continuation::bytea, cursorid FROM documentdb_api.find_cursor_first_page($1, $2::bytea, 0)", true},
	"aggregate":     {"SELECT cursorpage::bytea, continuation::bytea, cursorid FROM documentdb_api.aggregate_cursor_first_page($1, $2::bytea, 0)", true},
}

const moreText = "SELECT cursorpage::bytea, continuation::bytea FROM documentdb_api.cursor_get_more($1, $2::bytea, $3::bytea)"

func (t *tx) run(ctx context.Context, cmd command) (answer bson.Raw, err error) {
	var next bson.Raw
	var id int64
	switch call, known := calls[cmd.name]; {
	case cmd.name == "killCursors":
		return document(okField), nil
	case cmd.name == "getMore":
		id = cmd.body.Lookup("getMore").AsInt64()
		err = t.conn.QueryRow(ctx, moreText, cmd.db, []byte(cmd.body), []byte(t.pages[id])).Scan((*[]byte)(&answer), (*[]byte)(&next))
	case !known:
		return nil, fmt.Errorf("mongoproxy: the command %s cannot be part of a transaction here", cmd.name)
	case call.page:
		err = t.conn.QueryRow(ctx, call.text, cmd.db, []byte(cmd.body)).Scan((*[]byte)(&answer), (*[]byte)(&next), &id)
	default:
		err = t.conn.QueryRow(ctx, call.text, cmd.db, []byte(cmd.body)).Scan((*[]byte)(&answer))
	}
	if len(next) > 0 {
		t.pages[id] = next
	}
	return answer, err
}

// failed ends the transaction and returns the error as MongoDB would.
func (t *tx) failed(ctx context.Context, err error) bson.Raw {
	_ = t.finish(ctx, "ROLLBACK")
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return failure(6, "HostUnreachable", err.Error(), transient)
	case conflict(pg.Code):
		return failure(112, "WriteConflict", pg.Message, transient)
	case pg.Code == "M001C":
		return failure(11000, "DuplicateKey", pg.Message, "")
	}
	return failure(8, "UnknownError", pg.Code+": "+pg.Message, "")
}

// conflict says whether a state of PostgreSQL means that another transaction was in the way.
func conflict(state string) bool {
	switch state {
	case "40001", "40P01", "57014": // the latter: see waitsForAnother
		return true
	}
	return false
}

// wrapped are codes that DocumentDB puts into the errors of single writes, in its own form.
var wrapped = map[int32]int32{16777245: 2, 319029277: 11000}

// checked ends the transaction if a write failed.
func (t *tx) checked(ctx context.Context, answer bson.Raw) bson.Raw {
	var res struct {
		N           int32    `bson:"n"`
		WriteErrors []bson.M `bson:"writeErrors"`
	}
	if err := bson.Unmarshal(answer, &res); err != nil || len(res.WriteErrors) == 0 {
		return answer
	}
	_ = t.finish(ctx, "ROLLBACK")
	for _, e := range res.WriteErrors {
		code, _ := e["code"].(int32)
		if state := sqlState(code); conflict(state) {
			return failure(112, "WriteConflict", fmt.Sprint(e["errmsg"]), transient)
		}
		if c, ok := wrapped[code]; ok {
			e["code"] = c
		}
	}
	out, err := bson.Marshal(bson.D{{Key: "n", Value: res.N}, {Key: "writeErrors", Value: res.WriteErrors}, {Key: "ok", Value: 1.0}})
	if err != nil {
		return failure(1, "InternalError", err.Error(), "")
	}
	return out
}

// sqlState returns the five letters that PostgreSQL packs into a number, six bits each.
func sqlState(code int32) string {
	var s [5]byte
	for i := range s {
		s[i] = byte(code>>(6*i)&0x3f) + '0'
	}
	return string(s[:])
}

// endAll ends the transactions that a client began whose connection is gone.
func (p *Proxy) endAll(client net.Conn) {
	p.sweep(func(t *tx) bool { return t.client == client })
}

// reap ends transactions that last too long, and forgets those that ended long ago.
func (p *Proxy) reap(ctx context.Context) {
	tick := time.NewTicker(p.opts.Lifetime / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.sweep(func(*tx) bool { return true })
			return
		case now := <-tick.C:
			p.sweep(func(t *tx) bool { return now.After(t.until) })
		}
	}
}

func (p *Proxy) sweep(over func(t *tx) bool) {
	p.mu.Lock()
	var gone []*tx
	for key, t := range p.txs {
		if over(t) {
			gone = append(gone, t)
			delete(p.txs, key)
		}
	}
	p.mu.Unlock()
	for _, t := range gone {
		t.mu.Lock()
		_ = t.finish(context.Background(), "ROLLBACK")
		t.mu.Unlock()
	}
}

const transient = "TransientTransactionError"

// okField is the element ok: 1.0.
var okField = []byte{0x01, 'o', 'k', 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f}

func failure(code int32, name, text, label string) bson.Raw {
	d := bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: text}, {Key: "code", Value: code}, {Key: "codeName", Value: name}}
	if label != "" {
		d = append(d, bson.E{Key: "errorLabels", Value: bson.A{label}})
	}
	out, err := bson.Marshal(d)
	if err != nil {
		return document(nil) // numbers and texts can always be written
	}
	return out
}
