// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/atomicfile"
	"github.com/patchbay-net/patchbay/spec"
)

// identity is what a host keeps over reboots, renames and other addresses.
type identity struct {
	ID string `json:"id"` // 16 hexadecimal digits
}

const identityFile = "node.json"

// loadIdentity reads who this host is, or makes that up, once. A file that
// cannot be read is an error: another id would leave its blocks behind.
func loadIdentity(dir string) (*identity, error) {
	self, err := readIdentity(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return newIdentity(filepath.Join(dir, identityFile))
	}
	return self, err
}

// readIdentity makes nothing up. The error is fs.ErrNotExist where no agent was.
func readIdentity(dir string) (*identity, error) {
	path := filepath.Join(dir, identityFile)
	data, err := atomicfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("read who this host is: %w", err)
	}
	self := &identity{}
	if err := json.Unmarshal(data, self); err != nil {
		return nil, fmt.Errorf("read who this host is: %s: %w", path, err)
	}
	if spec.ValidateContainerID(self.ID) != nil {
		return nil, fmt.Errorf("read who this host is: %s: %q is not an id", path, self.ID)
	}
	return self, nil
}

func newIdentity(path string) (*identity, error) {
	self := &identity{ID: random(8)}
	data, err := json.Marshal(self)
	if err != nil {
		return nil, fmt.Errorf("encode who this host is: %w", err)
	}
	return self, atomicfile.WriteDurable(path, data, 0o600)
}

// random is n random bytes in hexadecimal digits.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
