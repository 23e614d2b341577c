// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// file is a network file with one plugin.
func file(name, plugin string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, name, plugin)
}

func TestDefault(t *testing.T) {
	b := newBench(t)
	if _, err := b.Default(); !errors.Is(err, chain.ErrNoNetwork) {
		t.Errorf("no directory: %v", err)
	}
	is := func(want string) {
		t.Helper()
		list, err := b.Default()
		if err != nil || list.Name != want {
			t.Errorf("default network is %v, %v, want %s", list, err, want)
		}
	}
	chaintest.Write(t, b.ConfDir, map[string]string{"20-list.conflist": file("list", `{"type":"rec1"}`)})
	is("list")
	chaintest.Write(t, b.ConfDir, map[string]string{"10-single.conf": `{"cniVersion":"1.1.0","name":"single","type":"rec1"}`})
	is("single") // by the file's name alone
	chaintest.Write(t, b.ConfDir, map[string]string{"15-broken.conflist": `{`})
	is("single")
	if len(b.Warned) != 1 {
		t.Errorf("warnings: %v", b.Warned)
	}
	chaintest.Write(t, b.ConfDir, map[string]string{"05-broken.conf": `{`})
	var broken *chain.FileError
	if _, err := b.Default(); !errors.As(err, &broken) || filepath.Base(broken.File) != "05-broken.conf" {
		t.Errorf("the first file is broken: %v", err)
	}
	b.Set(chain.WithDefaultNetwork("list"))
	is("list")
}

// STATUS of the default network: none is there, it is not ready, it is ready. Nothing is reloaded in between.
func TestStatusOfDefault(t *testing.T) {
	b := newBench(t)
	if err := b.Status(t.Context()); !errors.Is(err, spec.CodeNotAvailable) || !errors.Is(err, chain.ErrNoNetwork) {
		t.Errorf("no network: %v", err)
	}
	chaintest.Write(t, b.ConfDir, map[string]string{"10-a.conflist": file("a", `{"type":"rec1","fail":{"STATUS":{"code":51,"msg":"limited"}}}`)})
	if err := b.Status(t.Context()); !errors.Is(err, spec.CodeLimited) {
		t.Errorf("not ready: %v", err)
	}
	chaintest.Write(t, b.ConfDir, map[string]string{"10-a.conflist": file("a", `{"type":"rec1"}`)})
	if err := b.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Status(t.Context(), chaintest.List(t, file("x", `{"type":"rec1"}`)), chaintest.List(t, failing("STATUS", 2))); !errors.Is(err, spec.CodeTryAgain) {
		t.Errorf("two lists: %v", err)
	}
}
