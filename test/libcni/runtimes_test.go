// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/runtimes"
	"github.com/patchbay-net/patchbay/spec"
)

// breaks lists the rules for runtimes that each library breaks, with the reason.
var breaks = map[string]map[string]string{
	"chain": {"del-fails-halts": "on purpose: the objects of the other plugins would stay (docs/adr/0010)"},
	"libcni": {
		"config-capabilities": "it passes the key on", "result-older": "it passes the result of an older plugin on as it is",
		"drop-ins": "the configuration in its cache, which DEL must use, lacks them",
	},
}

// The rules for runtimes find what the libraries do otherwise, and nothing else.
func TestLibrariesAsRuntimes(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range breaks {
		t.Run(name, func(t *testing.T) {
			out, err := runtimes.Check(runtimes.Options{Command: []string{self, driverArgument, name}, Node: runtimes.Files(t.TempDir())})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, o := range out {
				switch {
				case o.Verdict == conformance.Failed:
					got[o.Rule.Name] = want[o.Rule.Name]
					t.Logf("%s: %s", o.Rule.Name, o.Why)
				case o.Verdict == conformance.NotApplicable && o.Rule.Name != "plugin-hangs":
					t.Errorf("%s is not judged: %s", o.Rule.Name, o.Why)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("it breaks %q, want %q", got, want)
			}
		})
	}
}

// driverArgument makes the test binary a command as runtimes.Options.Command describes it.
const driverArgument = "drive"

// driver does one operation with a library. It returns the exit status.
func driver(library, operation string) int {
	var valid []spec.AttachmentKey
	if text := os.Getenv("VALID_ATTACHMENTS"); text != "" {
		if err := json.Unmarshal([]byte(text), &valid); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	drive := map[string]func(string, chain.Attachment, []spec.AttachmentKey) error{"chain": driveChain, "libcni": driveLibcni}[library]
	if err := drive(operation, asked(), valid); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// asked is the attachment that the environment names.
func asked() chain.Attachment {
	a := chain.Attachment{ContainerID: os.Getenv("CONTAINERID"), NetNS: os.Getenv("NETNS"), IfName: os.Getenv("CNI_IFNAME")}
	pairs, err := spec.ParseArgs(os.Getenv("CNI_ARGS"))
	if err == nil {
		err = json.Unmarshal([]byte(os.Getenv("CAP_ARGS")), &a.Capabilities)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // the rules about both find it
	}
	for _, p := range pairs {
		a.Args = append(a.Args, [2]string{p.Key, p.Value})
	}
	return a
}

func driveChain(operation string, a chain.Attachment, valid []spec.AttachmentKey) error {
	cache := os.Getenv("CACHE_DIR")
	rt := chain.New(chain.WithPath(os.Getenv("CNI_PATH")), chain.WithConfDir(os.Getenv("NETCONFPATH")),
		chain.WithCacheDir(cache), chain.WithRunDir(filepath.Join(cache, "run")))
	ctx, network := context.Background(), os.Getenv("NETWORK")
	list, err := rt.Load(network)
	if err != nil {
		return err
	}
	switch operation {
	case "add":
		result, err := rt.Add(ctx, list, a)
		if err != nil {
			return err
		}
		data, err := result.Encode(list.CNIVersion)
		fmt.Println(string(data))
		return err
	case "del":
		if err := rt.DelCached(ctx, network, a); !errors.Is(err, chain.ErrNotCached) {
			return err
		}
		return rt.Del(ctx, list, a)
	case "check":
		return rt.Check(ctx, list, a)
	case "gc":
		return rt.GC(ctx, chain.Keep{List: list, Valid: valid})
	}
	return rt.Status(ctx, list)
}

func driveLibcni(operation string, a chain.Attachment, valid []spec.AttachmentKey) error {
	rt := libcni.NewCNIConfigWithCacheDir([]string{os.Getenv("CNI_PATH")}, os.Getenv("CACHE_DIR"), nil)
	ctx, conf := context.Background(), runtimeConf(a)
	list, err := libcni.LoadNetworkConf(os.Getenv("NETCONFPATH"), os.Getenv("NETWORK"))
	if err != nil {
		return err
	}
	switch operation {
	case "add":
		result, err := rt.AddNetworkList(ctx, list, conf)
		if err != nil {
			return err
		}
		return result.Print()
	case "del":
		if data, cached, err := rt.GetNetworkListCachedConfig(list, conf); err == nil && data != nil {
			if list, err = libcni.ConfListFromBytes(data); err != nil {
				return err
			}
			conf = cached
		}
		return rt.DelNetworkList(ctx, list, conf)
	case "check":
		return rt.CheckNetworkList(ctx, list, conf)
	case "gc":
		args := &libcni.GCArgs{}
		for _, v := range valid {
			args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: v.ContainerID, IfName: v.IfName})
		}
		return rt.GCNetworkList(ctx, list, args)
	}
	return rt.GetStatusNetworkList(ctx, list)
}
