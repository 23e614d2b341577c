// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// Until the first Write, every ADD isolates its pod, and a pod that ran before is left alone.
func TestIsolate(t *testing.T) {
	p := node(t)
	if Known(p) || Unknown(p) {
		t.Error("a node without a mirror has one")
	}
	for range 2 {
		if err := Isolate(p); err != nil {
			t.Fatal(err)
		}
		d, err := Read(p, web)
		if !errors.Is(err, ErrUnknown) || !isClosed(d) || Known(p) || !Unknown(p) {
			t.Errorf("got %+v, %v, want a closed pod", d, err)
		}
	}
	if d, err := ReadAgain(p, web, false); err != nil || !isOpen(d) {
		t.Errorf("a pod of before: got %+v, %v", d, err)
	}
	if d, err := ReadAgain(p, web, true); !errors.Is(err, ErrUnknown) || !isClosed(d) {
		t.Errorf("a pod that its ADD closed: got %+v, %v", d, err)
	}
	if errs := Damaged(p); errs != nil {
		t.Error(errs)
	}
	mustWrite(t, p, &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: "shop"}}})
	for _, pod := range []Pod{web, stranger} {
		if d, err := Read(p, pod); err != nil || !isOpen(d) || !Known(p) || Unknown(p) {
			t.Errorf("%v in a cluster without policies: got %+v, %v", pod, d, err)
		}
	}
}

// Isolate never changes a mirror.
func TestIsolateKeepsAMirror(t *testing.T) {
	p := mirrored(t, shop())
	before := files(t, p)
	if err := Isolate(p); err != nil || len(files(t, p)) != len(before) || files(t, p)[headFile] != before[headFile] {
		t.Error(err, files(t, p))
	}
}

// The first Write in a cluster without policies may be killed after its head, which is open. Later the cluster may
// have policies.
func TestIsolateAfterAKilledWrite(t *testing.T) {
	for at := 0; ; at++ {
		p := node(t)
		if err := Isolate(p); err != nil {
			t.Fatal(err)
		}
		if !killed(t, p, &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: "shop"}}}, at) {
			return
		}
		if err := Isolate(p); err != nil {
			t.Fatal(err)
		}
		if d, err := Read(p, web); !Known(p) && (!errors.Is(err, ErrUnknown) || !isClosed(d)) {
			t.Errorf("killed before change %d: got %+v, %v", at, d, err)
		}
	}
}

// If the first Write cannot write its head, pods stay isolated.
func TestIsolatedUntilWritten(t *testing.T) {
	p := node(t)
	if err := Isolate(p); err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(dir(p), headFile+"~") // a directory in the way of the new head
	if err := os.MkdirAll(filepath.Join(temp, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := writer{paths: p, step: func() {}, keep: map[string]bool{}}
	if w.put(headFile, content{}); w.failed() == nil {
		t.Fatal("the head was written")
	}
	if d, err := Read(p, web); !errors.Is(err, ErrUnknown) || !isClosed(d) {
		t.Errorf("got %+v, %v", d, err)
	}
}
