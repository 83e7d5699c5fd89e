package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/internal/testenv/mongoproxy"
)

// Mongo is a database of its own on a MongoDB server, or on one that stands in for it.
type Mongo struct {
	// URI is the connection string of the server.
	URI string
	// Database is the name of the database; it is created by its first use.
	Database string
	// Emulated reports that the server is FerretDB behind [mongoproxy]: no replica set, no change streams.
	Emulated bool
	// NoTransactions is the connection string of the same FerretDB without the proxy; empty for a real server.
	NoTransactions string

	server *MongoServer // nil for a real server
}

// Restricted returns a connection string for clients that may send only some commands, as those of a user with roles,
// and a function that ends it. FerretDB knows no roles of one's own, so the proxy refuses the others. Not for a real
// server, which has roles.
func (m *Mongo) Restricted(ctx context.Context, allow func(command bson.Raw) bool) (uri string, end func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	p, err := mongoproxy.Start(ctx, mongoproxy.Options{
		Listen: loopback(port), Upstream: loopback(m.server.PlainPort), Postgres: m.server.postgres(), Allow: allow,
		Go: func(fn func()) { go background(fn) },
	})
	if err != nil {
		freed(port)
		return "", nil, err
	}
	return m.server.uri(port), func() { p.Close(); freed(port) }, nil
}

// WithUsers returns a connection string, without a user, of a server that lets in only users, and a function that ends
// it. It has a user with a password. Only for FerretDB: there each user may do everything, whatever its roles.
func (m *Mongo) WithUsers(ctx context.Context, user, password string) (uri string, end func(), err error) {
	s := m.server
	program, _, err := ferretdb()
	if err != nil {
		return "", nil, err
	}
	create := bson.D{{Key: "createUser", Value: user}, {Key: "pwd", Value: password}, {Key: "roles", Value: bson.A{
		bson.D{{Key: "role", Value: "readAnyDatabase"}, {Key: "db", Value: "admin"}},
	}}}
	err = withMongoDB(s.uri(s.PlainPort), func(c *mongo.Client) error { return c.Database("admin").RunCommand(ctx, create).Err() })
	if err != nil {
		return "", nil, err
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	p, err := s.startFerretDB(program, port, user)
	if err == nil {
		err = poll(ctx, p.done, func(ctx context.Context) error { return pingMongoDB(ctx, s.uri(port)) })
	}
	end = func() {
		if p != nil {
			p.kill()
		}
		freed(port)
	}
	if err != nil {
		end()
		return "", nil, err
	}
	return s.uri(port), end, nil
}

// startFerretDB starts FerretDB at a port, with a folder for its state, and with more flags.
func (s *MongoServer) startFerretDB(program string, port int, state string, flags ...string) (*process, error) {
	return start(nil, s.dir, s.log("ferretdb-"+state), []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin", "HOME=" + s.dir}, program, append([]string{
		"--listen-addr=" + loopback(port), "--postgresql-url=" + s.postgres(), "--telemetry=disable",
		"--debug-addr=-", "--state-dir=" + filepath.Join(s.dir, state), "--log-level=error",
	}, flags...)...)
}

// MongoServer is a private FerretDB over a private PostgreSQL with the DocumentDB extension, behind a proxy that adds
// transactions.
type MongoServer struct {
	// Port and PlainPort are the ports of the proxy and of FerretDB on 127.0.0.1.
	Port, PlainPort int

	as           *account
	dir          string
	pgPort       int
	pg, ferretdb *process
	proxy        *mongoproxy.Proxy
}

// OpenMongoDB makes a database on the replica set of WAYBILL_TEST_MONGODB or, without it, on a shared FerretDB, which
// it starts if needed. The caller must Close the result.
func OpenMongoDB(ctx context.Context) (*Mongo, error) {
	db := &Mongo{URI: os.Getenv("WAYBILL_TEST_MONGODB"), Database: randomName("waybill_test_")}
	if db.URI != "" {
		return answers(ctx, "WAYBILL_TEST_MONGODB", func(ctx context.Context) (*Mongo, error) { return db, pingMongoDB(ctx, db.URI) })
	}
	s, err := sharedMongoDB()
	if err != nil {
		return nil, err
	}
	db.URI, db.NoTransactions, db.Emulated, db.server = s.uri(s.Port), s.uri(s.PlainPort), true, s
	return db, nil
}

var sharedMongoDB = sync.OnceValues(func() (*MongoServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return StartMongoDB(ctx)
})

func (s *MongoServer) uri(port int) string {
	return "mongodb://" + loopback(port) + "/?directConnection=true"
}

// StartMongoDB starts a private FerretDB and returns when it answers. The caller must Close it.
func StartMongoDB(ctx context.Context) (*MongoServer, error) {
	program, root, err := ferretdb()
	if err != nil {
		return nil, err
	}
	s := &MongoServer{}
	if s.as, err = accountIn(root, "postgres"); err != nil {
		return nil, err
	}
	if s.dir, err = newDir("postgres", s.as.here()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.start(ctx, program, root); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// ferretdb finds the program, and the root file system with PostgreSQL and DocumentDB.
func ferretdb() (program, root string, err error) {
	missing := func(what string) error {
		return fmt.Errorf("waybill/testenv: mongodb: %w: no %s: run scripts/mongodb, or set WAYBILL_TEST_MONGODB to the URI of a running replica set", ErrUnavailable, what)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", missing("cache folder")
	}
	program = filepath.Join(cache, "waybill", "bin", FerretDB, "ferretdb")
	if !isFile(program) {
		return "", "", missing(program)
	}
	if root = os.Getenv(MongoRoot); root == "" {
		root = "/var/lib/waybill-testenv/forky"
	}
	if !isFile(filepath.Join(root, ".documentdb")) {
		return "", "", missing("root file system with PostgreSQL's DocumentDB extension in " + root)
	}
	return program, root, nil
}

// FerretDB is the pinned version; scripts/mongodb names it, too.
const FerretDB = "ferretdb-v2.7.0"

// MongoRoot is the environment variable that names the root file system that scripts/mongodb prepared, if it is
// another one than usual.
const MongoRoot = "WAYBILL_NEWER"

func (s *MongoServer) start(ctx context.Context, program, root string) error {
	found, _ := filepath.Glob(root + "/usr/lib/postgresql/*/lib/pg_documentdb.so") // the pattern is valid
	if len(found) == 0 {
		return fmt.Errorf("waybill/testenv: mongodb: %w: no DocumentDB extension in %s: run scripts/mongodb", ErrUnavailable, root)
	}
	bin := strings.TrimPrefix(filepath.Join(filepath.Dir(filepath.Dir(found[0])), "bin"), root)
	for _, port := range []*int{&s.pgPort, &s.PlainPort, &s.Port} {
		var err error
		if *port, err = freePort(); err != nil {
			return err
		}
	}
	env := []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	data := filepath.Join(s.dir, "data")
	err := run(ctx, s.as, "/", env, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	if err != nil {
		return err
	}
	args := []string{"-D", data}
	for _, setting := range []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.pgPort), "unix_socket_directories=" + s.dir,
		"max_connections=300", "dynamic_shared_memory_type=mmap", "fsync=off", "full_page_writes=off",
		"shared_preload_libraries=pg_cron,pg_documentdb_core,pg_documentdb", "cron.database_name=postgres",
	} {
		args = append(args, "-c", setting)
	}
	if s.pg, err = start(s.as, "/", s.log("postgres"), env, filepath.Join(bin, "postgres"), args...); err != nil {
		return err
	}
	if err := poll(ctx, s.pg.done, s.extend); err != nil {
		return fmt.Errorf("waybill/testenv: mongodb: %w\n%s", err, tail(s.log("postgres")))
	}
	if s.ferretdb, err = s.startFerretDB(program, s.PlainPort, "open", "--no-auth"); err != nil {
		return err
	}
	if err := poll(ctx, s.ferretdb.done, func(ctx context.Context) error { return pingMongoDB(ctx, s.uri(s.PlainPort)) }); err != nil {
		return fmt.Errorf("waybill/testenv: mongodb: %w\n%s", err, tail(s.log("ferretdb-open")))
	}
	s.proxy, err = mongoproxy.Start(ctx, mongoproxy.Options{
		Listen: loopback(s.Port), Upstream: loopback(s.PlainPort), Postgres: s.postgres(),
		Go: func(fn func()) { go background(fn) },
	})
	return err
}

func (s *MongoServer) log(name string) string { return filepath.Join(s.dir, name+".log") }

func (s *MongoServer) postgres() string {
	return "postgres://postgres@" + loopback(s.pgPort) + "/postgres"
}

// extend creates the extension, which shows that the server is ready.
func (s *MongoServer) extend(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.postgres())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS documentdb CASCADE")
	return err
}

func pingMongoDB(ctx context.Context, uri string) error {
	return withMongoDB(uri, func(c *mongo.Client) error { return c.Ping(ctx, nil) })
}

func withMongoDB(uri string, fn func(c *mongo.Client) error) error {
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(5 * time.Second))
	if err != nil {
		return err
	}
	return errors.Join(fn(c), c.Disconnect(context.Background()))
}

// Close kills the servers and removes their files.
func (s *MongoServer) Close() error {
	if s.proxy != nil {
		s.proxy.Close()
	}
	for _, p := range []*process{s.ferretdb, s.pg} {
		if p != nil {
			p.kill()
		}
	}
	freed(s.pgPort, s.PlainPort, s.Port)
	removeSharedMemory(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("waybill/testenv: mongodb: %w", err)
	}
	return nil
}

// Close drops the database.
func (m *Mongo) Close(ctx context.Context) error {
	return withMongoDB(m.URI, func(c *mongo.Client) error { return c.Database(m.Database).Drop(ctx) })
}
