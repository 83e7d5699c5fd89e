package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// mountDisk mounts a file system of so many bytes on dir, owned by the account.
func mountDisk(dir string, bytes int, owner *account) error {
	if os.Getuid() != 0 {
		return fmt.Errorf("waybill/testenv: %w: a disk of its own for a server needs root, to mount it", ErrUnavailable)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		return fmt.Errorf("waybill/testenv: %w: cannot mount a disk of its own for a server: %w", ErrUnavailable, err)
	}
	if root := serversRoot(); root != "" { // the mount is not seen there by itself
		if err := syscall.Mount(dir, inRoot(dir), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("waybill/testenv: mount in %s: %w", root, err)
		}
	}
	return owner.own(dir)
}

// unmountIn unmounts what is mounted on dir or below it.
func unmountIn(dir string) {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(strings.TrimPrefix(at, serversRoot())+"/", dir+"/") {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
}

// FillDisk fills the disk of a server with Options.Disk to the last byte.
func (s *PostgresServer) FillDisk() error {
	f, err := os.OpenFile(s.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("waybill/testenv: fill the disk: %w", err)
	}
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	if err = errors.Join(err, f.Close()); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("waybill/testenv: fill the disk: %w", err)
	}
	return nil
}

// FreeDisk ends FillDisk.
func (s *PostgresServer) FreeDisk() error {
	if err := os.Remove(s.ballast()); err != nil {
		return fmt.Errorf("waybill/testenv: free the disk: %w", err)
	}
	return nil
}

func (s *PostgresServer) ballast() string { return filepath.Join(s.dir, "ballast") }
