package dashboard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const sessionTime = 12 * time.Hour

// maxEnded is how many sessions that were ended are remembered.
const maxEnded = 10_000

// sessions makes and reads the cookies of sessions. A cookie is a user, a time and a number, signed with a key of this
// process. The numbers of sessions that ended by a logout are kept until the sessions would have been over.
type sessions struct {
	mu    sync.Mutex
	key   []byte
	ended map[string]time.Time
	// passwordOf is the hash of a user's password, now. A cookie is good with the one that it was made with.
	passwordOf func(user string) string
}

// session has the values of a cookie, and those that the request adds.
type session struct {
	user   string // empty = the holder of the token, or nobody
	in     bool   // it has passed the login
	token  string // of its forms
	cookie string
	via    string // the way in
	from   string // address of the client
	right  Right
}

type sessionKey struct{}

func sessionOf(r *http.Request) session {
	s, _ := r.Context().Value(sessionKey{}).(session)
	return s
}

// init begins anew, with another key: all sessions are over.
func (s *sessions) init() {
	s.key, s.ended = make([]byte, 32), map[string]time.Time{}
	_, _ = rand.Read(s.key) // it never fails
}

func (s *sessions) sign(parts ...string) string {
	s.mu.Lock()
	mac := hmac.New(sha256.New, s.key)
	s.mu.Unlock()
	for _, p := range parts {
		_, _ = fmt.Fprintf(mac, "%d:%s", len(p), p)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// secure reports whether the browser has asked by HTTPS.
func (d *Dashboard) secure(r *http.Request) bool {
	return r.TLS != nil || d.opts.Proxy.TLS && d.opts.Proxy.has(r.RemoteAddr)
}

// cookieName has the port, since browsers share cookies between the ports of a host. By HTTPS it has a prefix, with
// which a browser takes the cookie from no other host and not by HTTP. Such a cookie is for all paths, so that its name
// has the path.
func (d *Dashboard) cookieName(r *http.Request) string {
	name := "waybill"
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		name += "_" + port
	}
	if !d.secure(r) {
		return name
	}
	if d.opts.Path != "" {
		name += "_" + hex.EncodeToString([]byte(d.opts.Path))
	}
	return "__Host-" + name
}

// guest and member begin the user of a cookie: before and after the login.
const guest, member = "", "+"

// cookie makes the cookie of a session of who, which is guest, or member and a user. A browser sends it for a link from
// another site, too, since otherwise a link in a chat would end the session. A request that changes something needs the
// token as well.
func (d *Dashboard) cookie(r *http.Request, who string) *http.Cookie {
	payload := base64.RawURLEncoding.EncodeToString([]byte(who)) + "." + strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 36) + "." + rand.Text()
	c := &http.Cookie{ //nolint:gosec // secure with TLS
		Name: d.cookieName(r), Value: payload + "." + d.sessions.seal(payload, who), Path: d.opts.Path + "/", MaxAge: int(sessionTime.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: d.secure(r),
	}
	if c.Secure {
		c.Path = "/" // as the prefix of its name demands
	}
	return c
}

// seal signs the payload of the cookie of who.
func (s *sessions) seal(payload, who string) string {
	return s.sign("session", payload, s.passwordOf(strings.TrimPrefix(who, member)))
}

// of returns the session of a cookie's value.
func (s *sessions) of(value string) (session, bool) {
	i := strings.LastIndexByte(value, '.')
	if i < 0 {
		return session{}, false
	}
	parts := strings.Split(value[:i], ".")
	if len(parts) != 3 {
		return session{}, false
	}
	who, err := base64.RawURLEncoding.DecodeString(parts[0])
	ends, err2 := strconv.ParseInt(parts[1], 36, 64)
	if err != nil || err2 != nil || !hmac.Equal([]byte(value[i+1:]), []byte(s.seal(value[:i], string(who)))) || time.Now().Unix() > ends {
		return session{}, false
	}
	s.mu.Lock()
	_, ended := s.ended[parts[2]]
	s.mu.Unlock()
	user, in := strings.CutPrefix(string(who), member)
	return session{user: user, in: in, token: s.sign("token", value), cookie: value}, !ended
}

// end ends the session of a cookie. If too many were ended, all sessions end: none comes back.
func (s *sessions) end(value string) {
	parts := strings.Split(value, ".")
	if len(parts) != 4 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if len(s.ended) >= maxEnded {
		maps.DeleteFunc(s.ended, func(_ string, over time.Time) bool { return now.After(over) })
	}
	if len(s.ended) >= maxEnded {
		s.init()
	}
	s.ended[parts[2]] = now.Add(sessionTime + time.Second) // its cookie is older
}

// same compares two secrets in a time that tells nothing about them.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
