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
	return writeError(key, value, c.Do(func() error { return writeExisting(path, value) }))
}

// Setting is a sysctl and its value.
type Setting struct{ Key, Value string }

// String is the form sysctl(8) takes.
func (s Setting) String() string { return s.Key + "=" + s.Value }

// SwapSysctls writes every value that is not there yet, in one trip into the
// namespace, and returns the settings that were changed as they were before.
// A write that fails is put to failed, which returns nil to go on.
func (c *Conn) SwapSysctls(want []Setting, failed func(Setting, error) error) (old []Setting, err error) {
	err = c.Do(func() error {
		for _, s := range want {
			was, err := c.swapSysctl(s)
			if err != nil {
				err = failed(s, err)
			} else if was != s.Value {
				old = append(old, Setting{s.Key, was})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return old, err
}

// swapSysctl runs on a thread in the namespace.
func (c *Conn) swapSysctl(s Setting) (was string, err error) {
	path, err := c.sysctlPath(s.Key)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", s.Key, err)
	}
	if was = strings.TrimSpace(string(data)); was == s.Value {
		return was, nil
	}
	return was, writeError(s.Key, s.Value, writeExisting(path, s.Value))
}

// writeError names what could not be written.
func writeError(key, value string, err error) error {
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
