package dashboard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const sessionTime = 12 * time.Hour

// sessions makes and reads the cookies of sessions. Nothing is stored: a cookie is a user and a time, signed with a key
// of this process.
type sessions struct {
	key []byte
}

// session is what a cookie says, and what the request adds to it.
type session struct {
	user  string // empty = the holder of the token, or nobody
	in    bool   // it has passed the login
	token string // of its forms
	via   string // the way in
	from  string // address of the client
	right Right
}

type sessionKey struct{}

func sessionOf(r *http.Request) session {
	s, _ := r.Context().Value(sessionKey{}).(session)
	return s
}

func (s *sessions) init() {
	s.key = make([]byte, 32)
	_, _ = rand.Read(s.key) // it never fails
}

func (s *sessions) sign(parts ...string) string {
	mac := hmac.New(sha256.New, s.key)
	for _, p := range parts {
		_, _ = fmt.Fprintf(mac, "%d:%s", len(p), p)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// cookieName has the port, since browsers share cookies between the ports of a host.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "waybill_" + port
	}
	return "waybill"
}

// guest and member begin the user of a cookie: before and after the login.
const guest, member = "", "+"

// cookie makes the cookie of a session of who, which is guest, or member and a user. It comes along when somebody
// follows a link from another site, since otherwise a link in a chat would end the session. What changes something
// needs the token, too.
func (s *sessions) cookie(r *http.Request, path, who string) *http.Cookie {
	payload := base64.RawURLEncoding.EncodeToString([]byte(who)) + "." + strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 36) + "." + rand.Text()
	return &http.Cookie{ //nolint:gosec // secure with TLS; without TLS only this machine, or a proxy, asks
		Name: cookieName(r), Value: payload + "." + s.sign("session", payload), Path: path + "/", MaxAge: int(sessionTime.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil,
	}
}

// of returns the session of a cookie's value.
func (s *sessions) of(value string) (session, bool) {
	i := strings.LastIndexByte(value, '.')
	if i < 0 || !hmac.Equal([]byte(value[i+1:]), []byte(s.sign("session", value[:i]))) {
		return session{}, false
	}
	parts := strings.Split(value[:i], ".")
	if len(parts) != 3 {
		return session{}, false
	}
	who, err := base64.RawURLEncoding.DecodeString(parts[0])
	ends, err2 := strconv.ParseInt(parts[1], 36, 64)
	if err != nil || err2 != nil || time.Now().Unix() > ends {
		return session{}, false
	}
	user, in := strings.CutPrefix(string(who), member)
	return session{user: user, in: in, token: s.sign("token", value)}, true
}

// same compares two secrets in a time that tells nothing about them.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
