//go:build !linux

package testenv

import "fmt"

func mountDisk(string, int, *account) error {
	return fmt.Errorf("waybill/testenv: %w: a disk of its own for a server needs Linux", ErrUnavailable)
}

func unmountIn(string) {}

// FillDisk needs Linux.
func (s *PostgresServer) FillDisk() error { return ErrUnavailable }

// FreeDisk needs Linux.
func (s *PostgresServer) FreeDisk() error { return ErrUnavailable }
