package config

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/waybill-go/waybill"
)

const maxSecretBytes = 64 << 10

// Secret is a setting that is never shown, such as a URL with a password. In a file it is the text itself or the name
// of a file that holds it:
//
//	url: {file: /run/secrets/shop-url}
//
// White space at the end of the file does not count. The file is read each time that Value is called, so a rotated
// secret is seen by the next call.
type Secret struct {
	text string
	file string
}

// NewSecret returns a secret with this text.
func NewSecret(text string) Secret { return Secret{text: text} }

// IsZero reports whether there is none.
func (s Secret) IsZero() bool { return s.text == "" && s.file == "" }

// Value returns the text. An error names the file. It never shows the content of the file.
func (s Secret) Value() (string, error) {
	if s.file == "" {
		return s.text, nil
	}
	f, err := os.Open(s.file)
	if err != nil {
		return "", fmt.Errorf("cannot read the file: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot read the file: %w", err)
	case len(b) > maxSecretBytes:
		return "", fmt.Errorf("the file %s has more than %d bytes", s.file, maxSecretBytes)
	}
	text := strings.TrimRight(string(b), " \t\r\n")
	if text == "" {
		return "", fmt.Errorf("the file %s is empty", s.file)
	}
	return text, nil
}

// Required returns the text of a secret that must be there, and must look like example. Errors name the field.
func (s Secret) Required(field, example string) (string, error) {
	if s.IsZero() {
		return "", waybill.Invalid("waybill: settings", field+": is missing; it must look like "+example)
	}
	text, err := s.Value()
	if err != nil {
		return "", waybill.Invalid("waybill: settings", field+": "+err.Error())
	}
	return text, nil
}

// Stamp changes when the file of the secret does. It is empty if there is no file, or none that can be read.
func (s Secret) Stamp() string {
	if s.file == "" {
		return ""
	}
	info, err := os.Stat(s.file)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}

// String hides the text.
func (s Secret) String() string {
	switch {
	case s.file != "":
		return "{file: " + s.file + "}"
	case s.text != "":
		return hidden
	}
	return ""
}

// GoString hides the text.
func (s Secret) GoString() string { return s.String() }

const hidden = "********"

// read takes the secret from n.
func (s *Secret) read(n *node) string {
	switch {
	case n.kind == null:
		*s = Secret{}
	case n.kind == scalar:
		*s = Secret{text: n.text}
	case n.kind == dict && len(n.keys) == 1 && n.keys[0] == "file" && n.fields["file"].kind == scalar && n.fields["file"].text != "":
		*s = Secret{file: n.fields["file"].text}
		if _, err := s.Value(); err != nil {
			return err.Error()
		}
	default:
		return "must be a text, or {file: path}"
	}
	return ""
}
