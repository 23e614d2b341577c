// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// withNetworks returns the API of a node with these networks. The map has the id of each name.
func withNetworks(t *testing.T, ids map[string]string) *api {
	s := remote.Open(t.TempDir())
	t.Cleanup(s.Records.Close)
	for name, id := range ids {
		must(t, s.Save(remote.Networks, name, &cnmplugin.Network{Request: &cnm.CreateNetworkRequest{NetworkID: id}}))
	}
	return &api{s}
}

// TestNetworkOrder checks that several matching networks lead to the answer that Docker would give.
func TestNetworkOrder(t *testing.T) {
	a := withNetworks(t, map[string]string{"a": "beef01", "b": "beef02", "beef": "cafe01", "cafe01": "d00d01"})
	for asked, want := range map[string]string{
		"beef": "beef", "beef02": "b", "cafe01": "beef", "cafe": "beef", "d00d": "cafe01", "a": "a", "d00d02": "", "": "",
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/networks/"+asked, nil))
		var got struct{ Name string }
		must(t, json.Unmarshal(w.Body.Bytes(), &got))
		if got.Name != want {
			t.Errorf("%q is network %q, want %q", asked, got.Name, want)
		}
	}
}

// awaitReader waits until a process has read a file.
func awaitReader(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close() //nolint:errcheck // a test
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_CLOSE_NOWRITE)
	must(t, err)
	must(t, f.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := f.Read(make([]byte, 4096)); err != nil {
		t.Fatalf("nobody reads %s: %v", path, err)
	}
}

// TestEventsOfWhatCannotBeRead makes the state unreadable. No event may then say that a container
// left.
func TestEventsOfWhatCannotBeRead(t *testing.T) {
	a := withNetworks(t, map[string]string{"net": "beef01"})
	attach := func(container string) {
		at := &remote.DriverState{Owner: owner.Of("net", container, "eth0"), ContainerID: container, IfName: "eth0"}
		must(t, a.state.Write("net", cnmplugin.Plugin.Name, at))
	}
	attach("a")
	stray := filepath.Join(a.state.Path, "attachments", "net", "stray")
	srv := httptest.NewServer(a)
	defer srv.Close()
	resp, err := http.Get(srv.URL + "/events")
	must(t, err)
	defer resp.Body.Close() //nolint:errcheck // a test
	must(t, os.WriteFile(stray, nil, 0o600))
	if _, err := a.read(); err == nil {
		t.Fatal("it can be read")
	}
	awaitReader(t, stray)
	must(t, os.Remove(stray))
	attach("b")
	var event struct {
		Action string
		Actor  struct{ Attributes map[string]string }
	}
	must(t, json.NewDecoder(resp.Body).Decode(&event))
	if got := event.Action + " " + event.Actor.Attributes["container"]; got != "connect b" {
		t.Error(got)
	}
	must(t, os.WriteFile(stray, nil, 0o600))
	w := httptest.NewRecorder()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", nil))
	if w.Code != http.StatusInternalServerError {
		t.Errorf("events of what cannot be read: status %d", w.Code)
	}
}
