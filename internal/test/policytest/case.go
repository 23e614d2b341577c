// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Case is one probe, after a cluster went through some states.
type Case struct {
	Probe  Probe     `json:"probe"`
	States []Cluster `json:"states"`
}

// String returns the case as JSON, as Replay reads it.
func (c Case) String() string {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Replay asks the engine about each case of a directory, each in a file as Compare prints it.
func Replay(t *testing.T, newEngine func() Engine, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if m := Ask(newEngine, readCase(t, file)); m != nil {
				t.Error(m)
			}
		})
	}
}

func readCase(t *testing.T, file string) Case {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c Case
	if err := unmarshal(text, &c); err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	return c
}

// unmarshal reads one JSON value, and refuses fields that its type does not have.
func unmarshal(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
