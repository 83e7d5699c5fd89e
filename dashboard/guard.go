package dashboard

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

const maxFormBytes = 2 << 20

// guard admits users who have a right, and gives each request its session.
func (d *Dashboard) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := d.admit(w, &r, origin); err != nil {
			d.fail(w, r, err)
			return
		}
		q, in := r.URL.Query(), sessionOf(r).in
		if d.token != "" && r.Method == http.MethodGet && q.Has("token") && (!in || same(q.Get("token"), d.token)) {
			d.enter(w, r)
			return
		}
		if !in && r.URL.Path != "/login" && !strings.HasPrefix(r.URL.Path, "/static/") {
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
	if !d.opts.known(req.Host) {
		return &refused{http.StatusForbidden, "The page was asked for by the name " + clip(req.Host, 100) + ", which is none of its own. " +
			"If it should be, add the name to Options.Hosts, or to dashboard.hosts in the settings."}
	}
	var s session
	ok := false
	if c, err := req.Cookie(d.cookieName(req)); err == nil {
		s, ok = d.sessions.of(c.Value)
	}
	if !ok {
		c := d.cookie(req, guest)
		http.SetCookie(w, c)
		s, _ = d.sessions.of(c.Value)
	}
	if err := d.enterBy(req, &s); err != nil {
		return err
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

// known reports whether the page goes by this name. A name that another site has pointed at this machine is none of
// its own. An address cannot be pointed elsewhere.
func (o *Options) known(hostport string) bool {
	name, port := hostport, ""
	if h, p, err := net.SplitHostPort(hostport); err == nil {
		name, port = h, p
	}
	name = strings.TrimSuffix(strings.ToLower(strings.Trim(name, "[]")), ".")
	for _, own := range o.Hosts {
		host, only, err := net.SplitHostPort(own)
		if err != nil {
			host, only = own, ""
		}
		if own == "*" || name == strings.ToLower(strings.Trim(host, "[]")) && (only == "" || only == port) {
			return true
		}
	}
	if len(o.Hosts) > 0 {
		return false
	}
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost"
}

// SignInURL returns the address of the page, whose server is reached at base, such as http://localhost:8080. It is for
// the operator who has started the program: without Users and Open it holds the token, with which one comes in.
// Print it once.
func (d *Dashboard) SignInURL(base string) string {
	address := strings.TrimSuffix(base, "/") + d.opts.Path + "/"
	if d.token != "" {
		address += "?token=" + d.token
	}
	return address
}

// enter begins the session of a user who followed SignInURL, and leads to the same page without the token: the token
// stays neither in the address bar nor in the history.
func (d *Dashboard) enter(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	target := "/login"
	if same(q.Get("token"), d.token) {
		http.SetCookie(w, d.cookie(r, member))
		d.tell(r, slog.LevelInfo, "dashboard.login", "somebody has logged in", "")
		target = path.Clean("/" + r.URL.Path)
	} else {
		d.refuseLogin(r, "")
	}
	if target == "/login" {
		target, q = "/", url.Values{}
	}
	q.Del("token")
	to := url.URL{Path: d.opts.Path + target, RawQuery: q.Encode()}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
}

func (d *Dashboard) refuseLogin(r *http.Request, user string) {
	d.tell(r, slog.LevelWarn, "dashboard.login_refused", "login refused", user)
}

// tell logs the result of a login.
func (d *Dashboard) tell(r *http.Request, level slog.Level, event, text, user string, more ...any) {
	s := sessionOf(r)
	facts := []any{"event", event, "user", clip(user, 100), "via", s.via, "remote", r.RemoteAddr, "client", s.from}
	d.log.Log(r.Context(), level, text, append(facts, more...)...)
}

// loginData is the page of the login.
type loginData struct {
	Problem string
	Token   bool // it asks for the token, not for a name and a password
}

func (d *Dashboard) loginPage(w http.ResponseWriter, r *http.Request) error {
	return d.render(w, r, http.StatusOK, "login", &loginData{Token: d.token != ""})
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) error {
	user, password := r.PostFormValue("user"), r.PostFormValue("password")
	data := &loginData{Problem: "Wrong name or password.", Token: d.token != ""}
	client := sessionOf(r).from
	if data.Token {
		user, data.Problem = "", "This is not the token."
	}
	if wait := d.brakes.wait(user, client); wait > 0 {
		return d.delayed(w, r, data, wait)
	}
	leave, err := d.passwords.enter(r.Context())
	if err != nil {
		return err
	}
	defer leave()
	if wait := d.brakes.try(user, client); wait > 0 { // another attempt was wrong meanwhile
		return d.delayed(w, r, data, wait)
	}
	good := data.Token && same(strings.TrimSpace(password), d.token) || !data.Token && d.people.Load().knows(user, password)
	if !good {
		d.refuseLogin(r, user)
		return d.render(w, r, http.StatusUnauthorized, "login", data)
	}
	d.brakes.right(user, client)
	d.leave(r)
	http.SetCookie(w, d.cookie(r, member+user))
	d.tell(r, slog.LevelInfo, "dashboard.login", "somebody has logged in", user)
	http.Redirect(w, r, d.opts.Path+"/", http.StatusSeeOther)
	return nil
}

// logout ends the session, and with it every copy of its cookie.
func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) error {
	d.leave(r)
	http.SetCookie(w, d.cookie(r, guest)) // in the place of the user's
	d.tell(r, slog.LevelInfo, "dashboard.logout", "somebody has logged out", sessionOf(r).user)
	http.Redirect(w, r, d.opts.Path+"/", http.StatusSeeOther)
	return nil
}

// leave ends the session of a request, if a user has logged in to it.
func (d *Dashboard) leave(r *http.Request) {
	if s := sessionOf(r); s.in && (s.via == viaToken || s.via == viaPassword) {
		d.sessions.end(s.cookie)
	}
}

func (d *Dashboard) delayed(w http.ResponseWriter, r *http.Request, data *loginData, wait time.Duration) error {
	seconds := int(wait/time.Second) + 1
	data.Problem = fmt.Sprintf("Too many attempts: try again in %s.", short(time.Duration(seconds)*time.Second))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	return d.render(w, r, http.StatusTooManyRequests, "login", data)
}
