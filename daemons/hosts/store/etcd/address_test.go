// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, address := range []string{"file://" + filepath.Join(dir, "a", "b"), "etcd://127.0.0.1/blue", "etcds://h1,h2:1,[::1]:2/blue"} {
		s, err := Open(t.Context(), address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{
		"", "/var/lib", "file://", "file://relative", "file:///a?b", "consul://h/c", "etcd://", "etcd://h", "etcd://h/", "etcd:///c", "etcd://h:1:2/c", "etcd://h,/c",
		"etcd://h/c?nonsense=1", "etcd://h/c/d", "etcd://h/c?ca=/nowhere", "etcd://h/c?cert=/a", "etcd://user@h/c", "etcds://h/c?names=a", "etcd://u:s3cret%@h/c", "etcd://u:s3cret@h:x:y/c",
		"etcd://u@h/c?password-file=/nowhere", "other://u:s3cret@h", "etcds://u:s3cret/more@h/c", "etcd://u:more/s3cret@h/c",
	} {
		s, err := Open(t.Context(), address)
		if err == nil {
			t.Errorf("%q opened %v", address, s)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a password is in an error: %v", err)
		}
	}
}

func TestOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]Options{
		"h/c":                 {Endpoints: []string{"h:2379"}, Cluster: "c"},
		"::1,[::2],[::3]:4/c": {Endpoints: []string{"[::1]:2379", "[::2]:2379", "[::3]:4"}, Cluster: "c"},
		"u:p%40%3A@h:1/c?ca=/a%20b&cert=/c&key=/k": {
			Endpoints: []string{"h:1"}, Cluster: "c", User: "u", Password: "p@:", TLS: TLS{CA: "/a b", Cert: "/c", Key: "/k"},
		},
		"u@h/c?password-file=" + file: {Endpoints: []string{"h:2379"}, Cluster: "c", User: "u", Password: "from a file", PasswordFile: file},
	} {
		got, err := options(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// A store that is open to others is named, without its password.
func TestExposed(t *testing.T) {
	for address, want := range map[string]string{
		"etcd://h1,127.0.0.1/c":                "the etcd at h1:2379,127.0.0.1:2379 has no TLS: everything that reaches it",
		"etcd://u:s3cret@h/c":                  "the etcd at h:2379 has no TLS: everybody who reads the packets",
		"etcds://u:s3cret@h/c":                 "",
		"etcd://localhost,127.0.0.2,[::1]:4/c": "",
	} {
		s, err := Open(t.Context(), address)
		must(t, err)
		if got := s.Exposed(); !strings.HasPrefix(got, want) || want == "" && got != "" || strings.Contains(got, "s3cret") {
			t.Errorf("%s: %q", address, got)
		}
		must(t, s.Close())
	}
}
