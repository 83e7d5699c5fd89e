package schema

import (
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// textFS is a flat, read-only file system of texts.
type textFS map[string]string

// Open returns the file name, or "." for the folder.
func (t textFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		d := &textDir{info: textInfo{name: ".", mode: fs.ModeDir | 0o555}}
		for _, n := range slices.Sorted(maps.Keys(t)) {
			d.left = append(d.left, fs.FileInfoToDirEntry(textInfo{name: n, size: int64(len(t[n])), mode: 0o444}))
		}
		return d, nil
	}
	text, ok := t[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &textFile{strings.NewReader(text), textInfo{name: path.Base(name), size: int64(len(text)), mode: 0o444}}, nil
}

type textFile struct {
	*strings.Reader
	info textInfo
}

func (f *textFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *textFile) Close() error               { return nil }

type textDir struct {
	info textInfo
	left []fs.DirEntry
}

func (d *textDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *textDir) Close() error               { return nil }
func (d *textDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: ".", Err: fs.ErrInvalid}
}

// ReadDir returns the next n entries, or all that are left if n ≤ 0.
func (d *textDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(d.left)
	} else if len(d.left) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.left))
	out := d.left[:n]
	d.left = d.left[n:]
	return out, nil
}

type textInfo struct {
	name string
	size int64
	mode fs.FileMode
}

func (i textInfo) Name() string       { return i.name }
func (i textInfo) Size() int64        { return i.size }
func (i textInfo) Mode() fs.FileMode  { return i.mode }
func (i textInfo) ModTime() time.Time { return time.Time{} }
func (i textInfo) IsDir() bool        { return i.mode.IsDir() }
func (i textInfo) Sys() any           { return nil }
