// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// made is the name of the directory of the notes.
const made = "made"

// Made is a note about an object or setting of the host that an ADD made for a network and that
// no DEL removes: a bridge, or forwarding. `network rm` reads the notes, and keeps objects that
// have no note.
type Made struct {
	Network string `json:"network"`          // network of the ADD
	Index   int    `json:"index,omitempty"`  // index of a bridge; a later bridge may have the same name
	Before  string `json:"before,omitempty"` // earlier value of a sysctl
}

// MadeBridge returns the name of the note about a bridge.
func MadeBridge(name string) string { return "bridge." + name }

// MadeSysctl returns the name of the note about a sysctl such as net/ipv4/ip_forward.
func MadeSysctl(key string) string { return "sysctl." + strings.ReplaceAll(key, "/", ".") }

func (d *Dir) madePath(name string) string { return filepath.Join(d.Path, made, name) }

// NoteMade writes a note. NoteMade replaces an older note with the same name.
func (d *Dir) NoteMade(name string, m Made) error {
	data, err := lightjson.Marshal(m)
	if err == nil {
		err = d.Guard(made)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(d.Path, made), 0o700)
	}
	if err == nil {
		err = durable.Write(d.madePath(name), data)
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", name, err)
	}
	return nil
}

// Made reads a note. Made returns nil if there is none.
func (d *Dir) Made(name string) (*Made, error) {
	if err := d.Guard(made); err != nil {
		return nil, fmt.Errorf("read note %s: %w: %w", name, ErrBroken, err)
	}
	data, err := durable.Read(d.madePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	m := new(Made)
	if err == nil {
		err = lightjson.Unmarshal(data, m)
	}
	if err != nil {
		return nil, fmt.Errorf("read note %s: %w: %w", name, ErrBroken, err)
	}
	return m, nil
}

// ForgetMade removes a note. ForgetMade accepts that the note is missing.
func (d *Dir) ForgetMade(name string) error {
	if err := d.Guard(made); err != nil {
		return fmt.Errorf("forget %s: %w", name, err)
	}
	if err := durable.Remove(d.madePath(name)); err != nil {
		return fmt.Errorf("forget %s: %w", name, err)
	}
	claim.RemoveEmpty(filepath.Join(d.Path, made))
	return nil
}

// ForgetBridge removes the note about a deleted bridge. If an ADD has made another bridge with
// that name since then, ForgetBridge keeps the note.
func (d *Dir) ForgetBridge(link string, index int) error {
	name := MadeBridge(link)
	if now, err := d.Made(name); err == nil && now != nil && now.Index != index {
		return nil
	}
	return d.ForgetMade(name)
}
