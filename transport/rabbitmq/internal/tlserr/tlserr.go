// Package tlserr tells errors of TLS from other errors of a connection.
//
// # Guarantees
//
// Is and Expired look through wrapped errors.
//
// # Concurrency
//
// Both are safe for concurrent use.
//
// # Ownership
//
// Nothing is kept.
//
// # Limits
//
// The type of a TLS alert is not exported: any *net.OpError with the operation "remote error" counts as one.
package tlserr

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// Is reports whether err says that one side does not accept the other's TLS: a certificate, a server name, an alert, or
// no TLS at all.
func Is(err error) bool {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		verify   *tls.CertificateVerificationError
		record   tls.RecordHeaderError
		remote   *net.OpError
	)
	return errors.As(err, &unknown) || errors.As(err, &hostname) || errors.As(err, &invalid) ||
		errors.As(err, &verify) || errors.As(err, &record) ||
		errors.As(err, &remote) && remote.Op == "remote error"
}

// Expired reports whether err says that the other's certificate, or one of its authorities, is not valid at this time.
func Expired(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}
