// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// SocketDir is the directory in which drivers make their sockets.
const SocketDir = "/run/docker/plugins"

// Dirs lists the directories in which Find looks for drivers.
type Dirs struct {
	Sockets []string // NAME.sock or NAME/NAME.sock
	Specs   []string // NAME.spec or NAME.json, or the same below NAME/
}

// DefaultDirs returns the directories that Docker uses. If the user is not root, the directories
// of rootless Docker come first.
func DefaultDirs() Dirs {
	d := Dirs{Sockets: []string{SocketDir}, Specs: []string{"/etc/docker/plugins", "/usr/lib/docker/plugins"}}
	if os.Geteuid() == 0 {
		return d
	}
	home := os.Getenv("HOME")
	config := cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
	d.Specs = append([]string{filepath.Join(config, "docker/plugins"), filepath.Join(home, ".local/lib/docker/plugins")}, d.Specs...)
	return d
}

// Find searches for a driver by its name. A socket wins over a file, a .spec file over a .json
// file, and an earlier directory over a later one. If there is no such driver, the error wraps
// ErrNoDriver.
func (d Dirs) Find(name string) (DriverAddr, error) {
	if !validName(name) {
		return DriverAddr{}, fmt.Errorf("driver %.80q: a name is of letters, digits, '_', '.', '-', ':' and '/'", name)
	}
	for _, dir := range d.Sockets {
		for _, path := range candidates(dir, name, ".sock") {
			if fi, err := os.Stat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
				return DriverAddr{Name: name, URL: "unix://" + path}, nil
			}
		}
	}
	for _, dir := range d.Specs {
		for _, ext := range []string{".spec", ".json"} {
			for _, path := range candidates(dir, name, ext) {
				if at, err := readSpec(name, path); !errors.Is(err, fs.ErrNotExist) {
					return at, err
				}
			}
		}
	}
	return DriverAddr{}, fmt.Errorf("driver %s: %w in %s", name, ErrNoDriver, strings.Join(append(d.Sockets, d.Specs...), ", "))
}

// validName reports whether a name cannot lead out of its directory.
func validName(name string) bool {
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	for _, c := range name {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune("_.-:/", c):
		default:
			return false
		}
	}
	return len(name) <= 200
}

func candidates(dir, name, ext string) []string {
	return []string{filepath.Join(dir, name+ext), filepath.Join(dir, name, filepath.Base(name)+ext)}
}

// readSpec reads a file with the address of a driver. A .spec file holds only the URL. A .json
// file holds an object with Addr and TLSConfig.
func readSpec(name, path string) (DriverAddr, error) {
	data, err := readSmall(path)
	if err != nil {
		return DriverAddr{}, err
	}
	at, err := parseSpec(name, filepath.Ext(path), data)
	if err != nil {
		return DriverAddr{}, fmt.Errorf("read %s: %w", path, err)
	}
	return at, nil
}

func parseSpec(name, ext string, data []byte) (DriverAddr, error) {
	at := DriverAddr{Name: name, URL: strings.TrimSpace(string(data))}
	if ext == ".json" {
		// encoding/json ignores the case of keys, so the lower-case tags of TLS match Docker's keys.
		var file struct {
			Addr      string
			TLSConfig *TLS
		}
		if err := json.Unmarshal(data, &file); err != nil {
			return DriverAddr{}, err
		}
		at.URL, at.TLS = file.Addr, file.TLSConfig
	}
	if u, err := url.Parse(at.URL); err != nil || u.Scheme == "" {
		return DriverAddr{}, fmt.Errorf("%.200q is no URL of a driver, such as unix:///run/x.sock or tcp://host:port", at.URL)
	}
	return at, nil
}

// maxSpec is a limit in bytes that no real file reaches.
const maxSpec = 64 << 10

func readSmall(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // O_NONBLOCK, because opening a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	fi, err := f.Stat()
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() > maxSpec) {
		err = fmt.Errorf("read %s: want a regular file of at most %d bytes that says where a driver is", path, maxSpec)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxSpec))
}
