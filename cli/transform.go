package cli

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transform"
)

// encryptSettings encrypt the bodies of a route.
type encryptSettings struct {
	KeyID string `doc:"id of the key, by which consumers find it; empty = off"`
	Key   Secret `doc:"the key: at least 32 random bytes, in base64"`
}

// signSettings sign the messages of a route.
type signSettings struct {
	KeyID      string `doc:"id of the key, by which consumers find it; empty = off"`
	Secret     Secret `doc:"secret for HMAC-SHA-256: at least 32 random bytes, in base64"`
	PrivateKey Secret `doc:"private key for Ed25519 instead, in PEM"`
}

const maxKeyID = 255

// checkKeyID reports the faults of a key's id.
func checkKeyID(id string, given bool, bad func(key, text string)) {
	switch {
	case id == "" && given:
		bad("key_id", "is missing: give the key an id, which consumers know too")
	case len(id) > maxKeyID:
		bad("key_id", fmt.Sprintf("has %d bytes; at most %d fit", len(id), maxKeyID))
	}
}

// check reports the faults of the settings, by key.
func (e *encryptSettings) check(bad func(key, text string)) {
	checkKeyID(e.KeyID, !e.Key.IsZero(), bad)
	if e.KeyID != "" && e.Key.IsZero() {
		bad("key", "is missing: give at least 32 random bytes in base64, such as by openssl rand -base64 32")
	}
}

// check reports the faults of the settings, by key.
func (s *signSettings) check(bad func(key, text string)) {
	checkKeyID(s.KeyID, !s.Secret.IsZero() || !s.PrivateKey.IsZero(), bad)
	if s.KeyID != "" && s.Secret.IsZero() == s.PrivateKey.IsZero() {
		bad("private_key", "give either a private key for Ed25519 in PEM, such as by openssl genpkey -algorithm ed25519, or a secret")
	}
}

// bytesOf returns the bytes of a secret in base64. An error shows nothing of them.
func bytesOf(s Secret) ([]byte, error) {
	text, err := s.Value()
	if err != nil {
		return nil, err
	}
	secret, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil, errors.New("is not base64")
	case len(secret) < 32:
		return nil, fmt.Errorf("has %d bytes; it needs at least 32", len(secret))
	}
	return secret, nil
}

// privateKeyOf returns a private key in PEM. An error shows nothing of it.
func privateKeyOf(s Secret) (ed25519.PrivateKey, error) {
	text, err := s.Value()
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("is no PEM: make one with openssl genpkey -algorithm ed25519")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("is no private key for Ed25519 (PKCS #8): make one with openssl genpkey -algorithm ed25519")
	}
	return key, nil
}

// step returns the step that encrypts, or a problem with a key of the settings.
func (e *encryptSettings) step() (step transform.Step, key string, err error) {
	secret, err := bytesOf(e.Key)
	keys := func(context.Context, string) ([]byte, error) { return secret, nil }
	return transform.Encrypt{KeyID: e.KeyID, Keys: keys}, "key", err
}

// step returns the step that signs, or a problem with a key of the settings.
func (s *signSettings) step() (step transform.Step, key string, err error) {
	var signing transform.SigningKey
	if key = "secret"; !s.Secret.IsZero() {
		signing.Secret, err = bytesOf(s.Secret)
	} else {
		key = "private_key"
		signing.Private, err = privateKeyOf(s.PrivateKey)
	}
	return transform.Sign{KeyID: s.KeyID, Keys: transform.StaticSigningKeys(map[string]transform.SigningKey{s.KeyID: signing})}, key, err
}

// keyedStep is a step whose key can change while the relay runs.
type keyedStep struct {
	transform.Step // as it was at the start, for its coding
	path           string
	now            atomic.Pointer[transform.Step]
}

// Do is that of the step with the newest key.
func (k *keyedStep) Do(ctx context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	return (*k.now.Load()).Do(ctx, e)
}

// keyed returns the steps of the route at a path that have a key. A problem belongs to a path.
func (r *routeSettings) keyed(path string, bad func(path, text string)) (out []*keyedStep) {
	add := func(name, id string, make func() (transform.Step, string, error)) {
		if id == "" {
			return
		}
		step, key, err := make()
		k := &keyedStep{Step: step, path: path + "." + name}
		if err != nil {
			bad(k.path+"."+key, err.Error())
			return
		}
		k.now.Store(&step)
		out = append(out, k)
	}
	add("encrypt", r.Encrypt.KeyID, r.Encrypt.step)
	add("sign", r.Sign.KeyID, r.Sign.step)
	return out
}

// publisher returns to with the steps by which the route changes bodies, and those of them that have a key. A problem
// belongs to a path.
func (r *routeSettings) publisher(to core.Publisher, path string, bad func(path, text string)) (core.Publisher, []*keyedStep) {
	var steps []transform.Step
	if r.Compress {
		steps = append(steps, transform.Gzip{})
	}
	complete := true
	keyed := r.keyed(path, func(path, text string) {
		complete = false
		bad(path, text)
	})
	for _, k := range keyed {
		steps = append(steps, k)
	}
	switch {
	case !complete:
		return nil, nil
	case len(steps) == 0:
		return to, nil
	}
	p, err := transform.Publisher(to, steps...)
	if err != nil {
		bad(path, err.Error())
		return nil, nil
	}
	return p, keyed
}

// routePath is where the settings of a route are.
func routePath(relay string, i int) string { return fmt.Sprintf("relays.%s.routes[%d]", relay, i) }

// rekey gives the steps of the running relays the keys of conf. A problem belongs to a path; its step keeps its key.
func (d *daemon) rekey(conf *loaded, bad func(path, text string)) {
	fresh := map[string]*keyedStep{}
	for name, r := range conf.Relays {
		for i := range r.Routes {
			for _, k := range r.Routes[i].keyed(routePath(name, i), bad) {
				fresh[k.path] = k
			}
		}
	}
	for _, k := range d.fleet.keyed {
		if f := fresh[k.path]; f != nil {
			k.now.Store(f.now.Load())
		}
	}
}

// rekeys reports whether a running relay takes over a setting of a step that has a key. It begins and ends no step.
func (d *daemon) rekeys(path string, fresh *loaded) bool {
	for _, k := range d.fleet.keyed {
		if strings.HasPrefix(path, k.path+".") {
			for name, r := range fresh.Relays {
				for i := range r.Routes {
					at := routePath(name, i)
					if at+".encrypt" == k.path && r.Routes[i].Encrypt.KeyID != "" || at+".sign" == k.path && r.Routes[i].Sign.KeyID != "" {
						return true
					}
				}
			}
		}
	}
	return false
}
