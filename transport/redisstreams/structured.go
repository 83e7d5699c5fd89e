package redisstreams

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// readStructured replaces e by the CloudEvents envelope in its body, if its content type says that there is one. What
// cannot be read stays as it is.
func readStructured(e *waybill.Envelope) {
	if e.ContentType == "" { // a producer that knows nothing of ce_ calls it so
		for _, name := range [...]string{"content-type", "datacontenttype"} {
			if isStructured(e.Headers[name]) {
				e.ContentType = e.Headers[name]
				delete(e.Headers, name)
			}
		}
	}
	if e.ID != "" || !isStructured(e.ContentType) {
		return
	}
	var parts map[string]json.RawMessage
	if json.Unmarshal(e.Body, &parts) != nil {
		return
	}
	out := waybill.Envelope{Topic: e.Topic, Priority: e.Priority, Headers: e.Headers}
	for name, raw := range parts {
		switch name {
		case "data":
			out.Body = raw
			if text := ""; !isJSON(parts["datacontenttype"]) && json.Unmarshal(raw, &text) == nil {
				out.Body = []byte(text)
			}
		case "data_base64":
			var text string
			if json.Unmarshal(raw, &text) != nil {
				return
			}
			body, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return
			}
			out.Body = body
		default:
			value := string(raw)
			_ = json.Unmarshal(raw, &value) // numbers and truth values stay as they are written
			if known, err := core.SetAttribute(&out, name, value); !known || err != nil {
				setHeader(&out, prefixCE+name, value)
			}
		}
	}
	if out.ContentType == "" {
		out.ContentType = "application/json" // what CloudEvents says of data without a type
	}
	*e = out
}

func isStructured(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), "application/cloudevents+json")
}

// isJSON reports whether a datacontenttype, as it stands in an envelope, is JSON's or absent.
func isJSON(raw json.RawMessage) bool {
	var t string
	if json.Unmarshal(raw, &t) != nil {
		return true
	}
	t, _, _ = strings.Cut(t, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	return t == "" || strings.HasSuffix(t, "/json") || strings.HasSuffix(t, "+json")
}
