package cli

import (
	"crypto/x509"
	"fmt"
	"os"
)

// certificates reads authorities in PEM.
func certificates(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return pool, nil
}
