// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrReadOnly is wrapped when /proc/sys cannot be written, as in a rootless container.
// Callers report it and go on where the value is not essential.
var ErrReadOnly = errors.New("/proc/sys is read-only")

// Sysctl returns the value of a key such as net/ipv4/conf/eth0/arp_notify in
// the namespace. The separator is '/', since interface names may hold dots.
func (c *Conn) Sysctl(key string) (value string, err error) {
	err = c.Do(func() error {
		value, err = c.proc.read(key)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return value, nil
}

// SetSysctl writes a value. errors.Is(err, ErrReadOnly) recognises a read-only /proc/sys.
func (c *Conn) SetSysctl(key, value string) error {
	return writeError(Setting{key, value}, c.Do(func() error { return c.proc.write(key, value) }))
}

// Setting is a sysctl and its value.
type Setting struct{ Key, Value string }

// String is the form sysctl(8) takes.
func (s Setting) String() string { return s.Key + "=" + s.Value }

// SwapSysctls writes every value that is not set yet, in one trip into the namespace, and
// returns the earlier values of the changed settings. When a write fails it calls failed,
// which returns nil to go on.
func (c *Conn) SwapSysctls(want []Setting, failed func(Setting, error) error) (old []Setting, err error) {
	err = c.Do(func() error {
		for _, s := range want {
			was, err := c.proc.swap(s.Key, s.Value)
			if err != nil {
				err = failed(s, writeError(s, err))
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

// writeError names the setting that could not be written.
func writeError(s Setting, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("set sysctl %s: %w: %w", s, ErrReadOnly, err)
	}
	return fmt.Errorf("set sysctl %s: %w", s, err)
}
