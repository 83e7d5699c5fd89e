// Package testenv finds or starts the real servers that tests, examples and benchmarks need: PostgreSQL, RabbitMQ,
// Redis and a stand-in for MongoDB, and puts a fault proxy in front of them. It does not import testing: a test passes
// its *testing.T as a [TB].
//
// # Which server
//
//	testenv.Postgres(t)      a fresh database on the shared server           dropped at the end of the test
//	testenv.RabbitMQ(t)      a fresh virtual host on the shared broker       deleted at the end of the test
//	testenv.Redis(t)         the URL of the shared server                    tests take names of their own
//	testenv.MongoDB(t)       a fresh database on a shared FerretDB           dropped at the end of the test
//	testenv.OwnPostgres(t)   a private server: may be killed, paused, ...    removed at the end of the test
//	testenv.OwnRabbitMQ(t)   a private broker: the same
//	testenv.OwnRedis(t)      a private Redis; OwnRedisCluster starts several that are a cluster
//	testenv.OwnPrometheus(t) a private Prometheus with alert rules, which reads a program of the test
//	testenv.SQS(t)           the endpoint of an emulator of Amazon SQS; package fakesqs has another one
//	testenv.NewProxy(t, a)   a TCP proxy before address a, to cut, delay, black-hole or refuse
//
// A shared server is started once for each test binary, at its first use (Postgres 1 s, RabbitMQ 3 to 9 s). Programs
// without a test use [OpenPostgres], [OpenRabbitMQ], [StartPostgres], [StartRabbitMQ] and [StartProxy], which return
// errors.
//
// Environment variables with the address of a running server win over the shared one:
//
//	WAYBILL_TEST_POSTGRES             postgres://user:password@host:5432/postgres
//	WAYBILL_TEST_RABBITMQ             amqp://guest:guest@host:5672/
//	WAYBILL_TEST_RABBITMQ_MANAGEMENT  http://guest:guest@host:15672
//	WAYBILL_TEST_REDIS                redis://user:password@host:6379/0
//	WAYBILL_TEST_KAFKA                host:9092
//	WAYBILL_TEST_MONGODB              mongodb://host:27017/?replicaSet=rs0
//	WAYBILL_TEST_SQS                  http://host:4566
//
// The user of Postgres may create databases. The management API is by default that of the same host and user, port
// 15672.
//
// There is no package of MongoDB. FerretDB, over PostgreSQL with the DocumentDB extension, stands in for it, behind a
// proxy that adds transactions (package mongoproxy). scripts/mongodb installs it; it needs root. A test that passes
// there proves nothing about MongoDB: run the tests of store/mongo on a replica set, too.
//
// Private servers keep their files in the folder that WAYBILL_TEST_DIR names. By default that is in memory,
// /dev/shm, if there are 2 GB left, or else the one for temporary files, which benchmarks always use.
//
// Servers are those of the distribution, or of any folder of programs:
//
//	WAYBILL_TEST_POSTGRES_BIN         the folder with initdb and postgres
//	WAYBILL_TEST_RABBITMQ_BIN         the folder with rabbitmq-server; Erlang is the PATH's
//	WAYBILL_TEST_REDIS_BIN            the folder with redis-server
//	WAYBILL_TEST_ROOT                 another root file system, such as one with newer versions (scripts/newer)
//
// Own servers are always private ones. If a server can neither be found nor started, package tier says whether the test
// fails or is skipped.
//
// # Guarantees
//
// Nothing is left behind: servers die with the process that started them, SIGKILL included, and a small guard then
// removes their folder. Only loopback addresses are used, on ports below the ephemeral range that are reserved until
// Close, so that a restart finds its port free.
//
// # Concurrency
//
// Everything is safe for concurrent use. Tests that use the shared servers may be parallel: no test sees another one's
// database or virtual host.
//
// # Ownership
//
// The helpers with a TB clean up at the end of the test; the others return a value with a Close method that the caller
// must call.
//
// # Limits
//
// Private servers need Linux and the distribution's binaries (scripts/servers installs them). A SIGKILL keeps the page
// cache: it proves recovery, not fsync. What RabbitMQ was told to declare less than [DefinitionsOnDisk] before a
// SIGKILL may be lost, queues with their confirmed messages: declare, wait, publish, kill. Goroutines that live as long
// as the process all run under [Background], for leak checks:
//
//	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
package testenv
