// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrReadOnly is wrapped when /proc/sys cannot be written, as in a rootless
// container. Callers report it and go on where the value is not essential.
var ErrReadOnly = errors.New("/proc/sys is read-only")

// Sysctl returns the value of a key such as net/ipv4/conf/eth0/arp_notify in
// the namespace. The separator is '/', since interface names may hold dots.
func (c *Conn) Sysctl(key string) (value string, err error) {
	path, err := c.sysctlPath(key)
	if err != nil {
		return "", err
	}
	err = c.Do(func() error {
		data, err := os.ReadFile(path)
		value = strings.TrimSpace(string(data))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return value, nil
}

// SetSysctl writes a value. errors.Is(err, ErrReadOnly) tells a read-only
// /proc/sys.
func (c *Conn) SetSysctl(key, value string) error {
	path, err := c.sysctlPath(key)
	if err != nil {
		return err
	}
	err = c.Do(func() error { return writeExisting(path, value) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("set sysctl %s=%s: %w: %w", key, value, ErrReadOnly, err)
	}
	return fmt.Errorf("set sysctl %s=%s: %w", key, value, err)
}

// sysctlPath keeps a key inside /proc/sys.
func (c *Conn) sysctlPath(key string) (string, error) {
	root := filepath.Join(c.proc, "sys")
	path := filepath.Join(root, key)
	if !strings.HasPrefix(path, root+"/") {
		return "", fmt.Errorf("sysctl key %q leads out of %s", key, root)
	}
	return path, nil
}

func writeExisting(path, value string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(value)
	return err
}
