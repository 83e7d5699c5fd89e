package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transform"
)

// encryptSettings encrypt the bodies of a route.
type encryptSettings struct {
	KeyID string `doc:"id of the key, by which consumers find it; empty = off"`
	Key   Secret `doc:"the key: at least 32 random bytes, in base64; read at the start"`
}

// check reports what is wrong with the settings, by key.
func (e *encryptSettings) check(bad func(key, text string)) {
	switch {
	case e.KeyID == "" && !e.Key.IsZero():
		bad("key_id", "is missing: give the key an id, which consumers know too")
	case e.KeyID != "" && e.Key.IsZero():
		bad("key", "is missing: give at least 32 random bytes in base64, such as by openssl rand -base64 32")
	case len(e.KeyID) > 255:
		bad("key_id", fmt.Sprintf("has %d bytes; at most 255 fit", len(e.KeyID)))
	}
}

// secret returns the bytes of the key. An error shows nothing of them.
func (e *encryptSettings) secret() ([]byte, error) {
	text, err := e.Key.Value()
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

// publisher returns to, with what the route does to bodies. A problem belongs to the key path.
func (r *routeSettings) publisher(to core.Publisher, path string, bad func(path, text string)) core.Publisher {
	var steps []transform.Step
	if r.Compress {
		steps = append(steps, transform.Gzip{})
	}
	if r.Encrypt.KeyID != "" {
		secret, err := r.Encrypt.secret()
		if err != nil {
			bad(path+".encrypt.key", err.Error())
			return nil
		}
		keys := func(context.Context, string) ([]byte, error) { return secret, nil }
		steps = append(steps, transform.Encrypt{KeyID: r.Encrypt.KeyID, Keys: keys})
	}
	if len(steps) == 0 {
		return to
	}
	p, err := transform.Publisher(to, steps...)
	if err != nil {
		bad(path, err.Error())
		return nil
	}
	return p
}
