package redisstreams

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
)

var (
	errExpired  = errors.New("the message's time is over")
	errNoAnswer = errors.New("the server has not answered in time; the result is unknown")
	// errFull is the cause of an outage of one topic.
	errFull = errors.New("a queue has as many messages as Options.MaxLen allows: consume them, or raise it")
)

func outage(op string, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/redisstreams: " + op, Class: waybill.ClassOutage, Err: err}
}

// refused is the error of a message that cannot be published.
func refused(reason waybill.Reason, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/redisstreams: publish", Class: waybill.ClassPermanent, Reason: reason, Err: err}
}

// misconfigured is an error about the server or the options, not about a message.
func misconfigured(op, format string, args ...any) *waybill.Error {
	return outage(op, fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...))
}

const noCommand = "the server is too old, or the command was renamed: Waybill needs Redis 7.0 or later, with the commands of the ACL in docs/redis.md"

// remedy explains an answer of the server, known by its first word, and names the cure. All of them are outages: no
// message is at fault. fix: an operator must change something, and waiting does not help.
type remedy struct {
	prefix, text string
	fix          bool
}

var remedies = []remedy{
	{"NOGROUP", "the queue or its consumer group was deleted: it is made again, unless Options.Passive", true},
	{"WRONGTYPE", "a key of the bus holds something else: delete it, or choose another Options.Bus", true},
	{"CROSSSLOT", "the keys of a bus are in several slots of the cluster: do not rewrite keys on the way", true},
	{"MOVED", "the server is a node of a cluster: pass New a cluster client", true},
	{"ASK", "the cluster is moving the bus's slot", false},
	{"TRYAGAIN", "the cluster is moving the bus's slot", false},
	{"CLUSTERDOWN", "the cluster has no node for the bus's slot: look at CLUSTER INFO", false},
	{"MASTERDOWN", "the replica has lost its primary", false},
	{"LOADING", "the server is loading its data after a start", false},
	{"BUSY", "a script of somebody else blocks the server", false},
	{"OOM", "the server has no memory left: raise maxmemory, or consume; its maxmemory-policy should be noeviction", false},
	{"MISCONF", "the server cannot save to its disk and takes no writes", false},
	{"READONLY", "the server is a replica: connect to the primary, with a failover or cluster client say", false},
	{"NOREPLICAS", "fewer replicas are connected than min-replicas-to-write", false},
	{"NOAUTH", "the server asks for a password: put user and password into the URL or the client", true},
	{"WRONGPASS", "user or password are wrong, or the user is disabled: check both", true},
	{"NOPERM", "the user may not do this: see the ACL in docs/redis.md", true},
	{"ERR unknown command", noCommand, true},
	{"ERR Unknown Redis command called from script", noCommand, true},
	{"ERR " + errAsRefused, "a message is above the server's proto-max-bulk-len: raise that, or set Options.MaxMessageBytes below it", true},
	{"ERR max number of clients", "the server has no connection left: raise maxclients", false},
	{"ERR invalid password", "the password is wrong: check it", true},
	{"ERR DB index", "there is no such database: correct the number at the end of the URL", true},
	{"ERR SELECT is not allowed in cluster mode", "a cluster has database 0 only: correct the end of the URL", true},
}

// classify gives an error of the driver its class and remedy.
func classify(op string, err error) *waybill.Error {
	if e, ok := errors.AsType[*waybill.Error](err); ok {
		return e
	}
	text := err.Error()
	if _, ok := errors.AsType[redis.Error](err); ok {
		// A script that the server ended early names what a command said: in its text, not in front.
		cause := strings.TrimPrefix(text, "EXECABORT Transaction discarded because of: ")
		for _, r := range remedies {
			if !strings.HasPrefix(cause, r.prefix) {
				continue
			}
			if r.fix {
				return misconfigured(op, "%s (%w)", r.text, err)
			}
			return outage(op, fmt.Errorf("%s (%w)", r.text, err))
		}
		if strings.Contains(text, "can't run this command") || strings.Contains(text, "can't access") || strings.Contains(text, "ACL failure") {
			return misconfigured(op, "the user may not do this: see the ACL in docs/redis.md (%w)", err)
		}
		return outage(op, err)
	}
	switch {
	case errors.Is(err, redis.ErrClosed):
		return outage(op, fmt.Errorf("%w: %w", waybill.ErrClosed, err))
	case isCut(err):
		return outage(op, fmt.Errorf("the server has closed the connection: it stops, or one of its limits is too low for what was asked "+
			"(proto-max-bulk-len, client-query-buffer-limit, client-output-buffer-limit, maxmemory-clients): its log says which; or this is no port of Redis, the URL must look like %s (%w)", exampleURL, err))
	case errors.Is(err, redis.ErrPoolTimeout):
		return outage(op, fmt.Errorf("no connection of the client became free: raise PoolSize by one for each subscription (%w)", err))
	case isTLS(err):
		return misconfigured(op, "TLS: %w: check the authorities, the server name and the client certificate (tls in the settings of the command, "+
			"Options.TLS in a program)", err)
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return outage(op, fmt.Errorf("%w (%w)", errNoAnswer, err))
	}
	return outage(op, fmt.Errorf("%w: check host and port, and that the server runs; the URL must look like %s", err, exampleURL))
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// isTLS reports whether one side does not accept the other's TLS.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error"
}

// noGroup reports whether the queue or its group is gone.
func noGroup(err error) bool {
	return redis.HasErrorPrefix(err, "NOGROUP") || redis.HasErrorPrefix(err, "ERR no such key")
}
