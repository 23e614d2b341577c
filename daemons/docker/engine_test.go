// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// serve runs a server on a socket that answers each path with a text.
func serve(t *testing.T, answers map[string]string) *httpEngine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		switch {
		case r.Method != http.MethodGet || !ok:
			http.Error(w, `{"message":"not found"}`, http.StatusNotFound)
		case strings.HasPrefix(text, "!"):
			http.Error(w, text[1:], http.StatusInternalServerError)
		default:
			_, _ = io.WriteString(w, text)
		}
	}))
	srv.Listener.Close() //nolint:errcheck // replaced
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	c, err := newEngine("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnswers(t *testing.T) {
	ctx := t.Context()
	c := serve(t, map[string]string{
		"/info":        `{"DockerRootDir":"/var/lib/docker","Name":"x"}`,
		"/networks":    `[{"Id":"n1","Name":"one","Driver":"patchbay","IPAM":{"Driver":"patchbay","Options":{"cni.network":"podnet"}}},{"Id":"n2","IPAM":{"Options":null}}]`,
		"/networks/n1": `{"Id":"n1","Containers":{"c1":{"EndpointID":"e1","MacAddress":"02:42:0a:5b:00:02","IPv4Address":"10.91.0.2/24","IPv6Address":"fd91::2/64"},"ep-e2":{"EndpointID":"e2"}}}`,
		"/networks/n2": `{"Id":"n2"}`,
		"/networks/n3": `{"Id":"n1"}`,
		"/networks/n4": `{"Id":"n4","Containers":{"c1":{"EndpointID":"e1","IPv4Address":"?"}}}`,
	})
	if root, err := c.root(ctx); err != nil || root != "/var/lib/docker" {
		t.Errorf("%q %v", root, err)
	}
	list, err := c.networks(ctx)
	if err != nil || len(list) != 2 || list[0].IPAM.Options["cni.network"] != "podnet" || list[0].Driver != "patchbay" {
		t.Errorf("%+v %v", list, err)
	}
	want := map[string]engineEndpoint{"e1": {"02:42:0a:5b:00:02", []netip.Addr{netip.MustParseAddr("10.91.0.2"), netip.MustParseAddr("fd91::2")}}, "e2": {}}
	if all, err := c.endpoints(ctx, "n1"); err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%v %v", all, err)
	}
	if ids, err := c.endpoints(ctx, "n2"); err != nil || ids == nil || len(ids) != 0 {
		t.Errorf("%v %v", ids, err)
	}
	if ids, err := c.endpoints(ctx, "gone"); err != nil || ids != nil {
		t.Errorf("%v %v", ids, err)
	}
	for _, bad := range []string{"n3", "n4"} { // n3 belongs to another network; n4 has an invalid address
		if _, err := c.endpoints(ctx, bad); err == nil {
			t.Errorf("the answer about %s was taken", bad)
		}
	}
}

// TestNoAnswer checks that an invalid answer does not count as the answer of a daemon without
// networks.
func TestNoAnswer(t *testing.T) {
	for name, text := range map[string]string{"an error": "!boom", "no list": `{}`, "no JSON": "<html>", "nothing": "", "no ids": `[{}]`, "null": "null", "none": "[]"} {
		c := serve(t, map[string]string{"/networks": text, "/info": `{}`})
		if list, err := c.networks(t.Context()); err == nil {
			t.Errorf("%s: %v", name, list)
		}
		if root, err := c.root(t.Context()); err == nil {
			t.Errorf("root %q", root)
		}
	}
	c := serve(t, nil)
	if _, err := c.networks(t.Context()); err == nil {
		t.Error("404 is a list")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "boots.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // test
	boots, err := newEngine("unix://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := boots.networks(ctx); err == nil {
		t.Error("a daemon that boots answered")
	}
}

func TestHosts(t *testing.T) {
	for _, bad := range []string{"", "unix://", "unix://host/x", "/var/run/docker.sock", "https://x:1", "tcp://x", "tcp://x:1/path", "unix://%"} {
		if _, err := newEngine(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := newEngine("tcp://127.0.0.1:2375"); err != nil {
		t.Error(err)
	}
}
