package mongo

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// FuzzDecode reads any document of a program with the right to insert: as bytes, and as the JSON of a document. A fault
// in it is that of one record.
func FuzzDecode(f *testing.F) { // SE-08
	for _, text := range []string{
		`{"_id":{"route":"r","id":"1"},"seq":{"$numberLong":"5"},"key":"k","slot":3}`, `{"_id":5,"seq":"x","slot":1e300,"phase":-1}`,
		`{"attrs":{"attributes":{"hlc":"x"},"headers":[["a","b"],["c"]]}}`, `{"attrs":5,"hold":null,"since":{"$date":"9999-12-31T23:59:59Z"}}`, `{}`,
	} {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
			f.Fatal(err)
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{5, 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 127, 3})
	client, err := driver.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1")) // nothing is asked
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = client.Disconnect(f.Context()) })
	s := &Store{outbox: client.Database("shop").Collection("waybill_outbox")}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bson.Raw(text).Validate() != nil {
			return // the driver lets nothing else through
		}
		r := decode(text)
		if _, err := s.envelope(&r); r.unreadable != nil && err == nil {
			t.Error("a record that cannot be read has no error")
		}
	})
}
