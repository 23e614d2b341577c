module github.com/patchbay-net/patchbay/test/labs/flannelplugin

go 1.24.2

require github.com/containernetworking/plugins v0.9.1

require github.com/containernetworking/cni v0.8.1 // indirect

tool github.com/containernetworking/plugins/plugins/meta/flannel
