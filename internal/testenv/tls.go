package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// TLS is a throwaway certificate authority with one server certificate (localhost, 127.0.0.1) and one client
// certificate (common name "postgres"), all as PEM files. Two of them do not trust each other.
type TLS struct {
	CAFile, ServerCertFile, ServerKeyFile, ClientCertFile, ClientKeyFile string

	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
}

// MakeTLS makes the certificates in dir. They are valid for a day.
func MakeTLS(dir string) (*TLS, error) {
	t := &TLS{
		CAFile:         filepath.Join(dir, "ca.pem"),
		ServerCertFile: filepath.Join(dir, "server.pem"), ServerKeyFile: filepath.Join(dir, "server.key"),
		ClientCertFile: filepath.Join(dir, "client.pem"), ClientKeyFile: filepath.Join(dir, "client.key"),
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: randomName("waybill test authority ")},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	if err := writeCert(t.CAFile, "", ca, caKey, ca, caKey); err != nil {
		return nil, err
	}
	t.ca, t.caKey = ca, caKey
	if err := t.RenewServer(ca.NotAfter); err != nil {
		return nil, err
	}
	return t, t.leaf(t.ClientCertFile, t.ClientKeyFile, &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "postgres"}, NotAfter: ca.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// RenewServer replaces the server's certificate by one that is valid until the time given, which may have passed. A
// server takes it at its next Restart or Reload.
func (t *TLS) RenewServer(until time.Time) error {
	return t.leaf(t.ServerCertFile, t.ServerKeyFile, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"}, NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

// leaf writes a certificate of the authority, and a new key.
func (t *TLS) leaf(certFile, keyFile string, cert *x509.Certificate) error {
	cert.NotBefore, cert.KeyUsage = t.ca.NotBefore, x509.KeyUsageDigitalSignature
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	return writeCert(certFile, keyFile, cert, key, t.ca, t.caKey)
}

// Client returns a client's configuration that trusts the authority and shows the client certificate.
func (t *TLS) Client() (*tls.Config, error) {
	ca, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	cert, err := tls.LoadX509KeyPair(t.ClientCertFile, t.ClientKeyFile)
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{cert}}, nil
}

// copyServer puts ca.pem, server.pem and server.key into dir, owned by the account that reads them.
func (t *TLS) copyServer(dir string, as *account) error {
	for from, name := range map[string]string{t.CAFile: "ca.pem", t.ServerCertFile: "server.pem", t.ServerKeyFile: "server.key"} {
		b, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("waybill/testenv: tls: %w", err)
		}
		to := filepath.Join(dir, name)
		if err := os.WriteFile(to, b, 0o600); err != nil {
			return fmt.Errorf("waybill/testenv: tls: %w", err)
		}
		if err := as.own(to); err != nil {
			return err
		}
	}
	return nil
}

func writeCert(certFile, keyFile string, cert *x509.Certificate, key *ecdsa.PrivateKey, parent *x509.Certificate, signer *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	if keyFile == "" {
		return nil
	}
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}), 0o600); err != nil {
		return fmt.Errorf("waybill/testenv: tls: %w", err)
	}
	return nil
}
