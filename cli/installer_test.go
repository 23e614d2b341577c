// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// pieces notes the length of each write.
type pieces []int

func (p *pieces) Write(b []byte) (int, error) { *p = append(*p, len(b)); return len(b), nil }

// A program is written in large pieces, because the kernel then caches it in large pages.
func TestLargePieces(t *testing.T) {
	content := make([]byte, 2*pieceSize+5)
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close() //nolint:errcheck // read only
	var got pieces
	sum, err := copyHashed(&got, src)
	want := sha256.Sum256(content)
	if err != nil || sum != hex.EncodeToString(want[:]) || !slices.Equal(got, pieces{pieceSize, pieceSize, 5}) {
		t.Errorf("pieces %d, hash %s, %v", got, sum, err)
	}
}
