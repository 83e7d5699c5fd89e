package dashboard

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	sessionTime  = 12 * time.Hour
	maxFormBytes = 2 << 20
)

// sessions makes and reads the cookies of sessions. Nothing is stored: a cookie is a name and a time, signed with a key
// of this process.
type sessions struct {
	key   []byte
	users map[string]string
	one   chan struct{} // one password is compared at a time
}

type session struct{ user, token string }

type sessionKey struct{}

func sessionOf(r *http.Request) session {
	s, _ := r.Context().Value(sessionKey{}).(session)
	return s
}

func (s *sessions) init(users map[string]string) error {
	s.key, s.users, s.one = make([]byte, 32), users, make(chan struct{}, 1)
	_, err := rand.Read(s.key)
	return err
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

// cookie makes the cookie of a user's session. It comes along when somebody follows a link from another site, since
// otherwise a link in a chat would end the session. What changes something needs the token, too.
func (s *sessions) cookie(r *http.Request, path, user string) *http.Cookie {
	payload := base64.RawURLEncoding.EncodeToString([]byte(user)) + "." + strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 36) + "." + rand.Text()
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
	user, err := base64.RawURLEncoding.DecodeString(parts[0])
	ends, err2 := strconv.ParseInt(parts[1], 36, 64)
	if err != nil || err2 != nil || time.Now().Unix() > ends {
		return session{}, false
	}
	return session{user: string(user), token: s.sign("token", value)}, true
}

// knows compares a password.
func (s *sessions) knows(ctx context.Context, user, password string) bool {
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
	case <-ctx.Done():
		return false
	}
	hash, ok := s.users[user]
	if !ok { // compare with another user's, which takes as long
		for _, hash = range s.users {
			break
		}
	}
	return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil && ok
}

// guard lets in who may come in, and gives each request its session.
func (d *Dashboard) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := d.admit(w, &r, origin); err != nil {
			d.fail(w, r, err)
			return
		}
		if len(d.opts.Users) > 0 && sessionOf(r).user == "" && r.URL.Path != "/login" && !strings.HasPrefix(r.URL.Path, "/static/") {
			if r.Method == http.MethodGet {
				http.Redirect(w, r, d.opts.Path+"/login", http.StatusSeeOther)
				return
			}
			d.fail(w, r, &refused{http.StatusUnauthorized, "Your session has ended: log in again."})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admit checks where a request comes from, and sets its session.
func (d *Dashboard) admit(w http.ResponseWriter, r **http.Request, origin *http.CrossOriginProtection) error {
	req := *r
	if len(d.opts.Users) == 0 && !d.opts.Open {
		if problem := foreign(req); problem != "" {
			return &refused{http.StatusForbidden, problem}
		}
	}
	var s session
	ok := false
	if c, err := req.Cookie(cookieName(req)); err == nil {
		s, ok = d.sessions.of(c.Value)
	}
	if !ok {
		c := d.sessions.cookie(req, d.opts.Path, "")
		http.SetCookie(w, c)
		s, _ = d.sessions.of(c.Value)
	}
	*r = req.WithContext(context.WithValue(req.Context(), sessionKey{}, s))
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return nil
	}
	if err := origin.Check(req); err != nil {
		return &refused{http.StatusForbidden, "This request comes from another site."}
	}
	(*r).Body = http.MaxBytesReader(w, req.Body, maxFormBytes)
	if err := (*r).ParseForm(); err != nil {
		return &refused{http.StatusBadRequest, "The form cannot be read, or has more than 2 MiB."}
	}
	if !ok || subtle.ConstantTimeCompare([]byte((*r).PostFormValue("token")), []byte(s.token)) != 1 {
		return &refused{http.StatusForbidden, "The form has no valid token: go back, load the page again, and repeat."}
	}
	return nil
}

// foreign says why a request is not from this machine. Headers of proxies prove nothing, and say that there is one.
func foreign(r *http.Request) string {
	const cure = "Only this machine may look: set users with passwords, or allow everybody behind a proxy that asks who they are."
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return "The request came through a proxy. " + cure
		}
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !remote.Addr().Unmap().IsLoopback() {
		return cure
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "The page was asked for by the name " + host + ", which is not this machine's. " + cure
	}
	return ""
}

func (d *Dashboard) loginPage(w http.ResponseWriter, r *http.Request) error {
	return d.render(w, r, http.StatusOK, "login", "")
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) error {
	user := r.PostFormValue("user")
	if !d.sessions.knows(r.Context(), user, r.PostFormValue("password")) {
		d.log.WarnContext(r.Context(), "login refused", "event", "dashboard.login_refused", "user", clip(user, 100), "remote", r.RemoteAddr)
		return d.render(w, r, http.StatusUnauthorized, "login", "Wrong name or password.")
	}
	http.SetCookie(w, d.sessions.cookie(r, d.opts.Path, user))
	http.Redirect(w, r, d.opts.Path+"/", http.StatusSeeOther)
	return nil
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) error {
	http.SetCookie(w, d.sessions.cookie(r, d.opts.Path, "")) // nobody's, in the place of the user's
	http.Redirect(w, r, d.opts.Path+"/", http.StatusSeeOther)
	return nil
}
