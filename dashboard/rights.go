package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/waybill-go/waybill"
)

// Right is a set of actions that a user may take. Each includes the rights before it.
type Right string

// The rights.
const (
	// RightLook shows everything that the options show.
	RightLook Right = "look"
	// RightAct sends again, replays, deletes, skips, puts aside, pauses and resumes.
	RightAct Right = "act"
	// RightEdit replays a message with another body.
	RightEdit Right = "edit"
)

var rights = []Right{RightLook, RightAct, RightEdit}

// User is an account of the dashboard.
type User struct {
	// Password is the bcrypt hash of the password (htpasswd -nB ada). Empty = the user comes through Proxy only.
	Password string
	// Right is what the user may do; default RightLook.
	Right Right
}

// Proxy is a reverse proxy before the dashboard.
type Proxy struct {
	// From are the addresses of the proxies, or their networks, such as 10.0.0.7 or 10.1.0.0/16. Every program
	// there can pretend to be any user: name no network that others share. Headers about users and clients from
	// other addresses do not count. The last address of X-Forwarded-For is that of the client.
	From []string
	// UserHeader is the header in which the proxy names the user whom it has asked, such as X-Forwarded-User. proxy
	// must remove it from its clients' requests. Empty = the proxy has no logins.
	UserHeader string
	// TLS says that browsers ask the proxy by HTTPS: cookies are for HTTPS only then.
	TLS bool
}

// has reports whether an address with a port is a proxy's.
func (p *Proxy) has(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	return err == nil && slices.ContainsFunc(p.From, func(from string) bool {
		network, err := networkOf(from)
		return err == nil && network.Contains(at.Addr().Unmap())
	})
}

func networkOf(from string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(from); err == nil {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
	}
	return netip.ParsePrefix(from)
}

// client returns from where a request comes, as the proxy says if it came through one.
func (p *Proxy) client(r *http.Request) string {
	if all := r.Header.Values("X-Forwarded-For"); len(all) > 0 && p.has(r.RemoteAddr) {
		last := all[len(all)-1]
		last = strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])
		if addr, err := netip.ParseAddr(strings.Trim(last, "[]")); err == nil {
			return addr.Unmap().String()
		}
		if addr, err := netip.ParseAddrPort(last); err == nil {
			return addr.Addr().Unmap().String()
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// user returns whom the proxy names; empty = the request does not come through it.
func (p *Proxy) user(r *http.Request) (string, error) {
	if p.UserHeader == "" || !p.has(r.RemoteAddr) {
		return "", nil
	}
	names := r.Header.Values(p.UserHeader)
	if len(names) != 1 || names[0] == "" || len(names[0]) > 200 || strings.ContainsFunc(names[0], unicode.IsControl) {
		return "", &refused{http.StatusForbidden, fmt.Sprintf("The proxy names no user, or several, in %s: it has to set the header once.", p.UserHeader)}
	}
	return names[0], nil
}

// The ways in, as the log has them.
const (
	viaToken    = "token"
	viaPassword = "password"
	viaProxy    = "proxy"
	viaOpen     = "open"
)

// enterBy completes the session of a request with the user, the kind of the login, and the user's right.
func (d *Dashboard) enterBy(r *http.Request, s *session) error {
	user, err := d.opts.Proxy.user(r)
	switch {
	case err != nil:
		return err
	case user != "":
		s.user, s.via, s.in = user, viaProxy, true
	case d.opts.Open:
		s.via, s.in = viaOpen, true
	case d.token != "":
		s.via = viaToken
	case len(d.people.Load().passwords) > 0:
		s.via = viaPassword
	default:
		return &refused{http.StatusForbidden, "The page is open to those only who come through the proxy of Options.Proxy: dashboard.proxy in the settings."}
	}
	s.from, s.right = d.opts.Proxy.client(r), d.rightOf(s)
	return nil
}

func (d *Dashboard) rightOf(s *session) Right {
	known, ok := d.people.Load().users[s.user]
	switch {
	case d.opts.ReadOnly:
		return RightLook
	case ok:
		return cmp.Or(known.Right, RightLook)
	case d.opts.Right == "" && s.via == viaToken:
		return RightEdit
	}
	return cmp.Or(d.opts.Right, RightLook)
}

// may reports whether the user of the session has a right.
func (s *session) may(right Right) bool {
	return s.in && slices.Index(rights, s.right) >= slices.Index(rights, right)
}

// demand refuses what takes a right that a request does not have.
func demand(r *http.Request, right Right) error {
	if s := sessionOf(r); !s.may(right) {
		return &refused{http.StatusForbidden, fmt.Sprintf("You have the right %q, and this takes the right %q: Options.Users gives it, or dashboard.users in the settings.", s.right, right)}
	}
	return nil
}

// problemsOfRights returns the faults of the users and their rights.
func (o *Options) problemsOfRights() (p []string) {
	right := func(field string, r Right) {
		if r != "" && !slices.Contains(rights, r) {
			p = append(p, fmt.Sprintf("%s: %q is no right: choose look, act or edit", field, r))
		}
	}
	passwords := 0
	for name, u := range o.Users {
		if name == "" || u.Password == "" && o.Proxy.UserHeader == "" || u.Password != "" && !strings.HasPrefix(u.Password, "$2") {
			p = append(p, fmt.Sprintf("Users[%q].Password: is no bcrypt hash: make one with htpasswd -nB", name))
		}
		if u.Password != "" {
			passwords++
		}
		right(fmt.Sprintf("Users[%q].Right", name), u.Right)
	}
	right("Right", o.Right)
	if o.Open && passwords > 0 {
		p = append(p, "Open: is set, and Users have passwords: choose one, since nobody would ask for the passwords")
	}
	if o.Open && o.Proxy.UserHeader != "" {
		p = append(p, "Open: is set, and so is Proxy.UserHeader: choose one, since Open lets others in than the proxy's users")
	}
	for i, from := range o.Proxy.From {
		if _, err := networkOf(from); err != nil {
			p = append(p, fmt.Sprintf("Proxy.From[%d]: %q is no address, such as 10.0.0.7 or 10.1.0.0/16", i, from))
		}
	}
	if o.Proxy.UserHeader != "" && len(o.Proxy.From) == 0 {
		p = append(p, "Proxy.UserHeader: is set without Proxy.From: name the proxies' addresses, since everybody can send a header")
	}
	if o.Proxy.TLS && len(o.Proxy.From) == 0 {
		p = append(p, "Proxy.TLS: is set without Proxy.From: name the proxies' addresses")
	}
	return p
}

// people are those who may come in, and the hashes of those who have a password.
type people struct {
	users     map[string]User
	passwords map[string]string
}

func newPeople(users map[string]User) *people {
	p := &people{maps.Clone(users), map[string]string{}}
	for name, u := range users {
		if u.Password != "" {
			p.passwords[name] = u.Password
		}
	}
	return p
}

// passwordOf returns the hash of a user's password; empty = the user has none.
func (d *Dashboard) passwordOf(user string) string { return d.people.Load().passwords[user] }

// SetUsers replaces Options.Users while the page runs. Sessions of removed users, and of users with another password,
// are over. Rights count from the next request on. The page keeps its way in: an error says so if no user has a
// password any more, or if one has the first.
func (d *Dashboard) SetUsers(users map[string]User) error {
	opts, now := d.opts, newPeople(users)
	opts.Users = users
	problems := opts.problemsOfRights()
	if (len(now.passwords) == 0) != (len(d.people.Load().passwords) == 0) {
		problems = append(problems, "Users: the first password, and the loss of the last one, change how one comes in: that needs a new Dashboard, or a restart")
	}
	if err := waybill.Invalid("waybill/dashboard: users", problems...); err != nil {
		return err
	}
	d.people.Store(now)
	return nil
}
