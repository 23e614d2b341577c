// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// made is the directory of the notes.
const made = "made"

// Made notes an object or setting of the host that an ADD made or switched on for a
// network and that no DEL removes: a bridge, forwarding. `network rm` reads it, and keeps
// objects without a note.
type Made struct {
	Network string `json:"network"`          // the network of the ADD
	Index   int    `json:"index,omitempty"`  // of a bridge: the name may belong to another one by now
	Before  string `json:"before,omitempty"` // the value before, of a sysctl
}

// MadeBridge is the name of the note of a bridge.
func MadeBridge(name string) string { return "bridge." + name }

// MadeSysctl is the name of the note of a sysctl, such as that of net/ipv4/ip_forward.
func MadeSysctl(key string) string { return "sysctl." + strings.ReplaceAll(key, "/", ".") }

func (s *Store) madePath(name string) string { return filepath.Join(s.Dir, made, name) }

// NoteMade writes a note, replacing an older one.
func (s *Store) NoteMade(name string, m Made) error {
	data, err := json.Marshal(m)
	if err == nil {
		err = s.guard(made)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(s.Dir, made), 0o700)
	}
	if err == nil {
		err = durable.Write(s.madePath(name), data)
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", name, err)
	}
	return nil
}

// Made reads a note; nil when there is none.
func (s *Store) Made(name string) (*Made, error) {
	if err := s.guard(made); err != nil {
		return nil, fmt.Errorf("read note %s: %w: %w", name, ErrBroken, err)
	}
	data, err := durable.Read(s.madePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	m := new(Made)
	if err == nil {
		err = json.Unmarshal(data, m)
	}
	if err != nil {
		return nil, fmt.Errorf("read note %s: %w: %w", name, ErrBroken, err)
	}
	return m, nil
}

// ForgetMade removes a note. A missing one is no error.
func (s *Store) ForgetMade(name string) error {
	if err := s.guard(made); err != nil {
		return fmt.Errorf("forget %s: %w", name, err)
	}
	if err := durable.Remove(s.madePath(name)); err != nil {
		return fmt.Errorf("forget %s: %w", name, err)
	}
	removeEmpty(filepath.Join(s.Dir, made))
	return nil
}

// ForgetBridge removes the note of a bridge that is gone, unless an ADD has made another
// bridge of that name since.
func (s *Store) ForgetBridge(link string, index int) error {
	name := MadeBridge(link)
	if now, err := s.Made(name); err == nil && now != nil && now.Index != index {
		return nil
	}
	return s.ForgetMade(name)
}
