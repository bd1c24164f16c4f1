"""The commands of `./tr-vam`: one file each. They wire things up and decide nothing."""
