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

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// identity is the content of the file that identifies a host. It stays the same when the host
// reboots or gets another name or other addresses.
type identity struct {
	ID string `json:"id"` // 16 hexadecimal digits
}

const identityFile = "node.json"

// loadIdentity reads this host's id. On the first start it creates the id. If the file exists
// but cannot be read, it returns an error, because with a new id the host would abandon its
// blocks.
func loadIdentity(dir string) (id string, err error) {
	id, err = readIdentity(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	id = random(8)
	data, err := json.Marshal(identity{id})
	if err != nil {
		return "", fmt.Errorf("encode the host's identity: %w", err)
	}
	return id, durable.WriteDurable(filepath.Join(dir, identityFile), data, 0o600)
}

// readIdentity reads the id, but never creates one. If no agent has run here, the error is
// fs.ErrNotExist.
func readIdentity(dir string) (id string, err error) {
	path := filepath.Join(dir, identityFile)
	data, err := durable.Read(path)
	if err != nil {
		return "", fmt.Errorf("read the host's identity: %w", err)
	}
	var self identity
	if err := json.Unmarshal(data, &self); err != nil {
		return "", fmt.Errorf("read the host's identity: %s: %w", path, err)
	}
	if spec.ValidateContainerID(self.ID) != nil {
		return "", fmt.Errorf("read the host's identity: %s: %q is not an id", path, self.ID)
	}
	return self.ID, nil
}

// random returns n random bytes as hexadecimal digits.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
